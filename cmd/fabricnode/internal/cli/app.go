package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/outcome"
)

// root is the command line.
type root struct {
	Config    kong.ConfigFlag `placeholder:"FILE" help:"YAML file whose keys are flag names. Flags and environment win over it."`
	JSON      bool            `name:"json" help:"Write JSON to standard output, failures included."`
	LogLevel  string          `enum:",debug,info,warn,error" default:"" placeholder:"LEVEL" help:"Least level of what is logged: debug, info, warn or error. Default info for run, warn for other commands."`
	LogFormat string          `enum:"console,json" default:"console" help:"Form of the log on standard error: ${enum}."`

	Run      runCmd      `cmd:"" help:"Run a node that serves the reference channels echo and work, and hosts objects of the reference type ledger."`
	Init     initCmd     `cmd:"" help:"Make the mesh's streams; safe to repeat."`
	Check    checkCmd    `cmd:"" help:"Compare the mesh's streams with what they should be; changes nothing."`
	Nodes    nodesCmd    `cmd:"" help:"List the nodes of the mesh."`
	Call     callCmd     `cmd:"" help:"Call a channel, an Actor or a Spot, and print the reply."`
	Create   createCmd   `cmd:"" help:"Create an Actor or a User Spot."`
	Destroy  destroyCmd  `cmd:"" help:"Destroy an Actor, or close a Spot."`
	Objects  objectsCmd  `cmd:"" help:"List the Actors and Spots of the mesh."`
	Locate   locateCmd   `cmd:"" help:"Say where an Actor or a Spot is."`
	Explain  explainCmd  `cmd:"" help:"Say why a call to an Actor or a Spot would succeed or fail now."`
	Release  releaseCmd  `cmd:"" help:"Take the authority over objects from an owner that is gone, so that they can be made again."`
	Relocate relocateCmd `cmd:"" help:"Move an Actor or a Spot to another node while it is used."`
	Drain    drainCmd    `cmd:"" help:"Move every object of a node to other nodes, before maintenance or a rolling update."`
	Sessions sessionsCmd `cmd:"" help:"List the sessions of clients that a node owns."`
	Forget   forgetCmd   `cmd:"" help:"Remove the descriptor of a dead node."`
	Demo     demoCmd     `cmd:"" help:"See a mesh of three nodes work through a web server's log while one is frozen and one is killed."`
	DemoNode demoNodeCmd `cmd:"" hidden:"" help:"A node of the demo."`
	Version  versionCmd  `cmd:"" help:"Print versions."`

	Supervise superviseCmd `cmd:"" help:"Watch workers, and restart those that hang without storms."`
	Workers   workersCmd   `cmd:"" help:"List the workers that report to the mesh, and what is thought of them."`
	Incidents incidentsCmd `cmd:"" help:"List the incidents of workers, and one worker's step by step."`

	DemoWorker demoWorkerCmd `cmd:"" hidden:"" help:"The worker of the demo of supervision."`

	Fence fenceCmd `cmd:"" help:"See who leads, test fence devices, and confirm that a node is fenced."`
}

const description = `The reference node of a natsfabric mesh, and the tool to operate one.

Every flag may also stand in the environment (FABRIC_MESH for --mesh) or in the file given by --config.`

// app is what a command gets.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	screen *screen
	json   bool
	log    *zap.Logger
	sig    *signals
}

// readStdin reads standard input to its end, at most limit bytes of it. A signal ends the wait for input; the read itself
// cannot be ended and stays until the process does.
func (a *app) readStdin(limit int64) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	read := make(chan result, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(a.stdin, limit))
		read <- result{data, err}
	}()
	select {
	case r := <-read:
		return r.data, r.err
	case <-a.sig.ctx.Done():
		return nil, a.sig.ctx.Err()
	}
}

// print writes the command's answer: v as one line of JSON with --json, else what text writes.
func (a *app) print(v any, text func(io.Writer)) error {
	if !a.json {
		text(a.stdout)
		return nil
	}
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s\n", line)
	return err
}

// newParser returns the parser that fills r.
func newParser(r *root, stdout, stderr io.Writer) *kong.Kong {
	parser, err := kong.New(r,
		kong.Name("fabricnode"), kong.Description(description+"\n\n"+exitTable),
		kong.Vars{"natsURL": nats.DefaultURL, "listen": defaultListen, "data": defaultData},
		kong.Configuration(loadFile), kong.DefaultEnvars("FABRIC"), kong.KindMapper(reflect.String, kong.MapperFunc(verbatim)),
		kong.Writers(stdout, stderr), kong.Exit(func(int) { panic(helpShown{}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		panic(err) // the grammar is part of the program
	}
	return parser
}

// verbatim reads a text as it is; the parser's own way replaces what is no UTF-8, in a payload or an ID.
func verbatim(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("text")
	if err == nil {
		target.SetString(fmt.Sprint(token.Value))
	}
	return err
}

// helpShown ends the parser after --help.
type helpShown struct{}

// Main runs fabricnode with the given arguments, without the program's name, and returns its exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(helpShown); !ok {
				panic(r)
			}
			code = ExitOK
		}
	}()
	var r root
	parser := newParser(&r, stdout, stderr)
	if len(args) == 0 {
		args = []string{"--help"}
	}
	if args[0] == "--version" { // behind a command it may be a flag of that
		args = append([]string{"version"}, args[1:]...)
	}
	if args[0] == "help" {
		args = append(args[1:len(args):len(args)], "--help")
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		return fail(stdout, stderr, asksJSON(args), parseError(parser.Model, err))
	}
	if r.LogLevel == "" {
		r.LogLevel = "warn"
		if ctx.Command() == "run" {
			r.LogLevel = "info"
		}
	}
	sigs := newSignals()
	scr := newScreen(&output{stderr, sigs.cancel})
	log, err := newLogger(scr, r.LogLevel, r.LogFormat)
	if err != nil {
		return fail(stdout, scr, r.JSON, err)
	}
	a := &app{stdin: stdin, stdout: &output{stdout, sigs.cancel}, screen: scr, json: r.JSON, log: log, sig: sigs}
	sigs.catch(log)
	defer sigs.stop()
	err = ctx.Run(a)
	if err != nil && a.sig.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = withCode(ExitInterrupted, fmt.Errorf("interrupted: %w", err))
	}
	return fail(stdout, scr, r.JSON, err)
}

// asksJSON finds --json where the parser did not get that far.
func asksJSON(args []string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if a == "--json" {
			return true
		}
	}
	return os.Getenv("FABRIC_JSON") == "true"
}

// failure is what --json prints for a command that failed.
type failure struct {
	OK    bool         `json:"ok"`
	Error errorDetails `json:"error"`
	Exit  int          `json:"exit_code"`
}

type errorDetails struct {
	Text string `json:"text"`
	// The rest is there when the error is one of the fabric's.
	Op         string `json:"op,omitempty"`
	Target     string `json:"target,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Acceptance string `json:"acceptance,omitempty"`
	Remote     bool   `json:"remote,omitempty"`
}

// fail prints err, if there is one, and returns the exit code.
func fail(stdout, stderr io.Writer, asJSON bool, err error) int {
	code := exitCode(err)
	if err == nil {
		return code
	}
	text := oneLine(err)
	fmt.Fprintln(stderr, "fabricnode: "+text)
	if asJSON {
		f := failure{Error: errorDetails{Text: text}, Exit: code}
		var e *outcome.Error
		if errors.As(err, &e) {
			f.Error.Op, f.Error.Target, f.Error.Remote = e.Op, e.Target, e.Remote
			f.Error.Kind, f.Error.Acceptance = e.Kind.String(), e.Acceptance.String()
		}
		line, err := json.Marshal(f)
		if err == nil {
			fmt.Fprintf(stdout, "%s\n", line)
		}
	}
	return code
}

// oneLine puts an error's text on one line: joined errors stand on several.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}
