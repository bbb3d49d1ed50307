// Command fabric-bench measures the fabric beside raw NATS on this machine: see `fabric-bench --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"natsfabric/internal/bench"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // a scenario failed
	exitUsage  = 2
)

// childCommand as the first argument makes the program one process of a scenario. It starts itself so.
const childCommand = "child"

// cli is the command line.
type cli struct {
	Names      []string      `arg:"" optional:"" name:"scenario" help:"Scenarios to run: ${scenarios}. Default: all."`
	Scenario   []string      `help:"Scenarios to run, beside those named as arguments." placeholder:"NAME"`
	Payload    []int         `help:"Payloads in bytes." default:"16,1024" placeholder:"BYTES"`
	Callers    []int         `help:"Numbers of operations under way at the same time." default:"1,64" placeholder:"N"`
	Pairs      int           `help:"Pairs of slices per comparison; the order within a pair alternates. 15 or more make a proof. Default: ${pairs}." placeholder:"N"`
	Slice      time.Duration `help:"Length of one slice of one side. Default: ${slice}." placeholder:"TIME"`
	IdleWindow time.Duration `help:"Scenario idle: length of one window. Default: ${idle_window}." placeholder:"TIME"`
	IdleNodes  int           `help:"Scenario idle: nodes of the large mesh. Default: ${idle_nodes}." placeholder:"N"`
	Objects    int           `help:"Scenario idle: idle objects on one node. Default: ${objects}." placeholder:"N"`
	Others     int           `help:"Scenario hot: objects beside the hot one. Default: ${others}." placeholder:"N"`
	Drain      int           `help:"Scenario drain: Actors that a member moves. Default: ${drain}." placeholder:"N"`
	Workers    int           `help:"Scenario supervise: workers of the large fleet. Default: ${workers}." placeholder:"N"`
	Quick      bool          `help:"Short slices, few pairs and objects: shows that everything works, compares nothing. What is given beside it holds."`
	Dir        string        `help:"Folder for the servers' data, which is removed afterwards. Default: the system's temporary folder. Durability costs what its disk costs." type:"existingdir" placeholder:"DIR"`
	Profile    string        `help:"Write a CPU profile of every process into this folder." type:"existingdir" placeholder:"DIR"`
	Plot       string        `help:"Draw the blackouts that the scenario relocate has measured into this file (SVG)." type:"path" placeholder:"FILE"`
	JSON       bool          `help:"Print one JSON object {\"results\":[...]} to standard output, and the configurations to standard error." xor:"form"`
	Markdown   bool          `help:"Print Markdown, as docs/benchmarks.md has it." xor:"form"`
}

// childCLI is the command line after childCommand.
type childCLI struct {
	Profile string `placeholder:"DIR"`
	Role    string `arg:""`
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// exited is how kong's exit (for --help) leaves the parser.
type exited int

// run is main with everything passed in. It returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(exited)
			if !ok {
				panic(r)
			}
			code = int(e)
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(args) > 0 && args[0] == childCommand {
		var c childCLI
		if err = parse(&c, args[1:], stdout, stderr); err == nil {
			err = bench.Child(ctx, c.Role, c.Profile, stdin, stdout)
		}
	} else {
		var c cli
		if err = parse(&c, args, stdout, stderr); err == nil {
			err = c.run(ctx, stdout, stderr)
		}
	}
	var options *bench.OptionError
	var usage *kong.ParseError
	switch {
	case errors.As(err, &options), errors.As(err, &usage):
		fmt.Fprintln(stderr, "fabric-bench:", err)
		return exitUsage
	case err != nil:
		fmt.Fprintln(stderr, "fabric-bench:", err)
		return exitFailed
	}
	return exitOK
}

func parse(cli any, args []string, stdout, stderr io.Writer) error {
	parser, err := kong.New(cli, kong.Name("fabric-bench"), kong.Description(description()), kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exited(code)) }), kong.ConfigureHelp(kong.HelpOptions{WrapUpperBound: 110}), kong.Vars{
			"scenarios": names(), "pairs": fmt.Sprint(bench.DefaultPairs), "slice": bench.DefaultSlice.String(),
			"idle_window": bench.DefaultIdleWindow.String(), "idle_nodes": fmt.Sprint(bench.DefaultIdleNodes),
			"objects": fmt.Sprint(bench.DefaultObjects), "others": fmt.Sprint(bench.DefaultOthers),
			"drain": fmt.Sprint(bench.DefaultDrain), "workers": fmt.Sprint(bench.DefaultWorkers),
		})
	if err != nil {
		return err
	}
	_, err = parser.Parse(args)
	return err
}

func (c *cli) run(ctx context.Context, stdout, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	command := []string{self, childCommand}
	if c.Profile != "" {
		command = append(command, "--profile", c.Profile)
	}
	report, err := bench.Run(ctx, bench.Options{
		Command: command, Scenarios: append(c.Names, c.Scenario...), Payloads: c.Payload, Callers: c.Callers,
		Pairs: c.Pairs, Slice: c.Slice, IdleWindow: c.IdleWindow, IdleNodes: c.IdleNodes, Objects: c.Objects,
		Others: c.Others, Drain: c.Drain, Workers: c.Workers, Quick: c.Quick, Dir: c.Dir,
		Progress: func(what string) { fmt.Fprintln(stderr, what) },
	})
	if len(report.Results) == 0 {
		return err
	}
	if c.Plot != "" && err == nil {
		err = plot(report, c.Plot)
	}
	// What was measured before a failure is printed, too.
	return errors.Join(err, c.print(report, stdout, stderr))
}

func (c *cli) print(report bench.Report, stdout, stderr io.Writer) error {
	if c.JSON {
		return errors.Join(report.WriteSetups(stderr), report.WriteJSON(stdout))
	}
	if c.Markdown {
		return report.WriteMarkdown(stdout)
	}
	if err := report.WriteSetups(stdout); err != nil {
		return err
	}
	fmt.Fprintln(stdout)
	return report.WriteTable(stdout)
}

func names() string {
	var s string
	for i, info := range bench.Scenarios() {
		if i > 0 {
			s += ", "
		}
		s += info.Name
	}
	return s
}

func description() string {
	s := "Measures the fabric beside raw NATS on this machine. Server, members and callers run in processes of their own, " +
		"on loopback. Both sides share the server, which runs the product's defaults, and are measured in turns; the report " +
		"shows the medians of both, the median of the pairs' ratios fabric/raw, and its spread (JSON: distance of the quartiles).\n\n" +
		"Scenarios:\n\n"
	for _, info := range bench.Scenarios() {
		s += "  " + info.Name + ": " + info.Compares + "\n\n"
	}
	return s
}

// plot draws into a file.
func plot(r bench.Report, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(r.WritePlot(f), f.Close())
}
