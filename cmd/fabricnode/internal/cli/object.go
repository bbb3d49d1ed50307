package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"natsfabric/fabric"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// idFlags name an Actor or a Spot by its ID, whatever characters that has.
type idFlags struct {
	Actor *string `group:"Object" placeholder:"ID" help:"ID of an Actor: 1 to 255 bytes of UTF-8."`
	Spot  *string `group:"Object" placeholder:"ID" help:"ID of a Spot: 1 to 255 bytes of UTF-8."`
}

// key checks the flags. There is none without a flag.
func (f idFlags) key() (key kvlocation.ObjectKey, given bool, err error) {
	switch {
	case f.Actor != nil && f.Spot != nil:
		return key, true, withCode(ExitUsage, errors.New("--actor clashes with --spot: give one of them"))
	case f.Actor != nil:
		key = kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: *f.Actor}
	case f.Spot != nil:
		key = kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: *f.Spot}
	default:
		return key, false, nil
	}
	_, err = wire.EscapeID(key.ID)
	return key, true, withCode(ExitUsage, err)
}

// objectFlags name an object: by a flag and its ID, or in one word.
type objectFlags struct {
	idFlags
	Object string `arg:"" optional:"" help:"The object in one word: actor/ID or spot/ID, with @GENERATION for one incarnation; bytes of the ID other than letters, digits, _ and - as =XX."`
}

// named is an object that a command names. Generation is 0 where none was given, Kind is empty for a bare ID.
type named struct {
	kvlocation.ObjectKey
	generation uint64
}

// object reads what was given.
func (f objectFlags) object() (named, error) {
	key, given, err := f.key()
	switch {
	case err != nil:
		return named{}, err
	case given && f.Object != "":
		return named{}, withCode(ExitUsage, fmt.Errorf("%q clashes with --actor or --spot: give one of them", f.Object))
	case given:
		return named{ObjectKey: key}, nil
	case f.Object == "":
		return named{}, withCode(ExitUsage, errors.New("no object is named: give --actor ID, --spot ID, or a word like actor/alice"))
	}
	n, err := parseObject(f.Object)
	return n, withCode(ExitUsage, err)
}

// parseObject reads a reference, the same without a generation, or a bare ID.
func parseObject(word string) (named, error) {
	kind, token, ok := strings.Cut(word, "/")
	if !ok || kind != string(kvlocation.KindActor) && kind != string(kvlocation.KindSpot) {
		_, err := wire.EscapeID(word)
		return named{ObjectKey: kvlocation.ObjectKey{ID: word}}, err
	}
	_, generation, whole := strings.Cut(token, "@")
	if !whole {
		word += "@0"
	}
	if generation == "0" {
		return named{}, fmt.Errorf("%q is not allowed: a generation is at least 1 (fabricnode locate shows it)", word)
	}
	n := named{ObjectKey: kvlocation.ObjectKey{Kind: kvlocation.ObjectKind(kind)}}
	if n.Kind == kvlocation.KindActor {
		ref, err := objects.ParseActorRef(word)
		n.ID, n.generation = ref.ID, ref.Generation
		return n, wordError(word, whole, err)
	}
	ref, err := objects.ParseSpotRef(word)
	n.ID, n.generation = ref.ID, ref.Generation
	return n, wordError(word, whole, err)
}

// wordError puts an error about a word in terms of what was typed. whole: it had a generation.
func wordError(word string, whole bool, err error) error {
	if err == nil {
		return nil
	}
	form := "actor/ID or spot/ID"
	if whole {
		form = "actor/ID@GENERATION or spot/ID@GENERATION, the generation a number,"
	} else {
		word = strings.TrimSuffix(word, "@0")
	}
	return fmt.Errorf("%q is not allowed: it must be %s with bytes of the ID other than letters, digits, _ and - as =XX; --actor and --spot take every ID as it is", word, form)
}

// asFlag says how an object that was named in one word is named where that word is something else; empty for a word that
// names none.
func asFlag(word string) string {
	n, err := parseObject(word)
	if err != nil || n.Kind == "" {
		return ""
	}
	return fmt.Sprintf(" (for the object: --%s %s)", n.Kind, shellWord(n.ID))
}

// shellWord quotes a text where a shell needs it.
func shellWord(s string) string {
	if token, err := wire.EscapeID(s); err == nil && token == s {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// exactFlags name an object with its generation, for what is done to one incarnation only.
type exactFlags struct {
	objectFlags
	Generation uint64 `group:"Object" placeholder:"N" help:"Which incarnation; not needed with actor/ID@N."`
}

func (f exactFlags) exact() (named, error) {
	n, err := f.object()
	switch {
	case err != nil:
		return n, err
	case n.Kind == "":
		return n, withCode(ExitUsage, fmt.Errorf("%q says neither Actor nor Spot: give --actor or --spot, or a reference like actor/alice@12", n.ID))
	case n.generation != 0 && f.Generation != 0:
		return n, withCode(ExitUsage, errors.New("the generation is given twice"))
	case n.generation == 0:
		n.generation = f.Generation
	}
	if n.generation == 0 {
		return n, withCode(ExitUsage, fmt.Errorf("the generation is missing: give --generation, or a reference like actor/alice@12 (fabricnode locate shows it)"))
	}
	return n, nil
}

// word names an object in one word, without a generation.
func word(key kvlocation.ObjectKey) string { return strings.TrimSuffix(refText(key, 0), "@0") }

// text is the object's text form, as references have it.
func (n named) text() string { return refText(n.ObjectKey, n.generation) }

func refText(key kvlocation.ObjectKey, generation uint64) string {
	if key.Kind == kvlocation.KindActor {
		return objects.ActorRef{ID: key.ID, Generation: generation}.String()
	}
	return objects.SpotRef{ID: key.ID, Generation: generation}.String()
}

// locate finds an object; one that was named by a bare ID among the Actors and the Spots.
func locate(ctx context.Context, svc *objects.Service, n named) (objects.Location, error) {
	if n.Kind != "" {
		return svc.Locate(ctx, n.ObjectKey)
	}
	actor, err := svc.Locate(ctx, kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: n.ID})
	if err != nil && !errors.Is(err, outcome.NotFound) {
		return actor, err
	}
	spot, spotErr := svc.Locate(ctx, kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: n.ID})
	switch {
	case spotErr != nil && !errors.Is(spotErr, outcome.NotFound):
		return spot, spotErr
	case err == nil && spotErr == nil:
		return actor, withCode(ExitUsage, fmt.Errorf("both an Actor and a Spot have the ID %q: give --actor or --spot", n.ID))
	case err == nil:
		return actor, nil
	case spotErr == nil:
		return spot, nil
	}
	return spot, outcome.New("find", outcome.NotFound, outcome.NotAccepted, fmt.Sprintf("object %q", n.ID), "neither an Actor nor a Spot has this ID")
}

type locateCmd struct {
	meshFlags
	objectFlags
}

// locateReply is what locate answers with --json.
type locateReply struct {
	OK bool `json:"ok"`
	objects.Location
	Ref string `json:"ref"`
}

func (c *locateCmd) Run(a *app) error {
	n, err := c.object()
	if err != nil {
		return err
	}
	return c.with(a, storeTimeout, func(ctx context.Context, client *fabric.Client) error {
		at, err := locate(ctx, client.Objects(), n)
		if err != nil {
			return err
		}
		if err := n.is("locate", at.Generation); err != nil {
			return err
		}
		return a.print(locateReply{true, at, refText(at.Key(), at.Generation)}, func(w io.Writer) { printLocation(w, at) })
	})
}

// is refuses another incarnation than the one that was named, if one was. present is 0 when there is none.
func (n named) is(op string, present uint64) error {
	if n.generation == 0 || n.generation == present {
		return nil
	}
	now := "there is none now"
	if present > 0 {
		now = fmt.Sprintf("the present generation is %d", present)
	}
	return outcome.New(op, outcome.NotFound, outcome.NotAccepted, n.text(), "that incarnation is gone: "+now)
}

func printLocation(w io.Writer, at objects.Location) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	writeLocation(t, at)
}

// writeLocation writes the rows about a location into a table.
func writeLocation(t io.Writer, at objects.Location) {
	fmt.Fprintf(t, "%s\n", refText(at.Key(), at.Generation))
	fmt.Fprintf(t, "  type\t%s (%s)\n", at.Type, at.Class)
	fmt.Fprintf(t, "  phase\t%s\n", at.Phase)
	fmt.Fprintf(t, "  owner\t%s, lifecycle %d, owner generation %d: %s\n", at.RID, at.Lifecycle, at.OwnerGeneration, aliveText(at))
	if m := at.Move; m != nil {
		stage := "not accepted yet: it may still stay"
		if m.Accepted {
			stage = "accepted: it goes there or nowhere"
		}
		fmt.Fprintf(t, "  moves to\t%s, lifecycle %d; %s\n", m.RID, m.Lifecycle, stage)
	}
	if !at.Spot.IsZero() {
		fmt.Fprintf(t, "  member of\t%s\n", at.Spot)
	}
	if !at.Created.IsZero() {
		fmt.Fprintf(t, "  created\t%s, last changed %s\n", at.Created.UTC().Format(time.RFC3339), at.Updated.UTC().Format(time.RFC3339))
	}
}

func aliveText(at objects.Location) string {
	switch {
	case !at.Alive:
		return "gone (Unavailable until released)"
	case at.LeaseUntil.IsZero():
		return "alive"
	}
	return "alive, its lease lasts until " + at.LeaseUntil.UTC().Format(time.RFC3339) + " if it is not renewed"
}

// with runs f with a client of the mesh, within a bound.
func (f *meshFlags) with(a *app, timeout time.Duration, do func(context.Context, *fabric.Client) error) error {
	ctx, cancel := context.WithTimeout(a.sig.ctx, timeout)
	defer cancel()
	client, err := f.client(ctx, timeout, a.log)
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	return do(ctx, client)
}
