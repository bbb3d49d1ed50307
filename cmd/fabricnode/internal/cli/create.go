package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"natsfabric/fabric"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

type createCmd struct {
	meshFlags
	idFlags
	Type    string        `required:"" placeholder:"NAME" help:"Type of the object; fabricnode nodes lists the types. Every fabricnode has ledger."`
	Get     bool          `help:"Do not fail when the object exists already."`
	At      string        `placeholder:"RID" help:"Create it at this node, and at no other."`
	Timeout time.Duration `default:"5s" help:"Bound of the creation, connecting included."`

	Input string `arg:"" optional:"" help:"Input for the object's factory; - reads standard input. Empty without it."`
}

// createReply is what create answers with --json.
type createReply struct {
	OK         bool                  `json:"ok"`
	Ref        string                `json:"ref"`
	Kind       kvlocation.ObjectKind `json:"kind"`
	ID         string                `json:"id"`
	Type       string                `json:"type"`
	Generation uint64                `json:"generation"`
	Created    bool                  `json:"created"`
}

func (c *createCmd) Run(a *app) error {
	key, given, err := c.key()
	if err == nil && !given {
		err = withCode(ExitUsage, errors.New("no object is named: give --actor ID or --spot ID"+asFlag(c.Input)))
	}
	if err != nil {
		return err
	}
	if err := wire.CheckName("--type", c.Type); err != nil {
		return withCode(ExitUsage, err)
	}
	if err := checkRID("--at", c.At); err != nil {
		return err
	}
	if err := checkDuration("--timeout", c.Timeout, time.Millisecond, fabric.MaxTimeout); err != nil {
		return withCode(ExitUsage, err)
	}
	input, err := a.payload(c.Input)
	if err != nil {
		return err
	}
	var opts []objects.CallOption
	if c.At != "" {
		opts = append(opts, objects.AtNode(c.At))
	}
	return c.with(a, c.Timeout, func(ctx context.Context, client *fabric.Client) error {
		r := createReply{OK: true, Kind: key.Kind, ID: key.ID, Type: c.Type}
		r.Generation, r.Created, err = c.create(ctx, client, key, input, opts)
		if err != nil {
			return err
		}
		r.Ref = refText(key, r.Generation)
		return a.print(r, func(w io.Writer) {
			if r.Created {
				fmt.Fprintln(w, r.Ref)
			} else {
				fmt.Fprintf(w, "%s existed already\n", r.Ref)
			}
		})
	})
}

func (c *createCmd) create(ctx context.Context, client *fabric.Client, key kvlocation.ObjectKey, input []byte, opts []objects.CallOption) (generation uint64, created bool, err error) {
	if key.Kind == kvlocation.KindActor {
		var ref objects.ActorRef
		if c.Get {
			ref, created, err = client.Actors().GetOrCreate(ctx, c.Type, key.ID, input, opts...)
			return ref.Generation, created, err
		}
		ref, err = client.Actors().Create(ctx, c.Type, key.ID, input, opts...)
		return ref.Generation, true, err
	}
	var ref objects.SpotRef
	if c.Get {
		ref, created, err = client.Spots().GetOrCreate(ctx, c.Type, key.ID, input, opts...)
		return ref.Generation, created, err
	}
	ref, err = client.Spots().Create(ctx, c.Type, key.ID, input, opts...)
	return ref.Generation, true, err
}

type destroyCmd struct {
	meshFlags
	exactFlags
	Timeout time.Duration `default:"5s" help:"Bound of the whole, connecting included."`
}

// destroyReply is what destroy answers with --json.
type destroyReply struct {
	OK         bool                  `json:"ok"`
	Destroyed  string                `json:"destroyed"`
	Kind       kvlocation.ObjectKind `json:"kind"`
	ID         string                `json:"id"`
	Generation uint64                `json:"generation"`
}

func (c *destroyCmd) Run(a *app) error {
	n, err := c.exact()
	if err != nil {
		return err
	}
	if err := checkDuration("--timeout", c.Timeout, time.Millisecond, fabric.MaxTimeout); err != nil {
		return withCode(ExitUsage, err)
	}
	return c.with(a, c.Timeout, func(ctx context.Context, client *fabric.Client) error {
		if n.Kind == kvlocation.KindActor {
			err = client.Actors().Destroy(ctx, objects.ActorRef{ID: n.ID, Generation: n.generation})
		} else {
			err = client.Spots().Close(ctx, objects.SpotRef{ID: n.ID, Generation: n.generation})
		}
		if err != nil {
			return err
		}
		verb := "destroyed"
		if n.Kind == kvlocation.KindSpot {
			verb = "closed"
		}
		return a.print(destroyReply{true, n.text(), n.Kind, n.ID, n.generation}, func(w io.Writer) {
			fmt.Fprintf(w, "%s is %s; its ID is free\n", n.text(), verb)
		})
	})
}

// checkRID checks a flag that may name a node.
func checkRID(flag, rid string) error {
	if rid == "" {
		return nil
	}
	return withCode(ExitUsage, wire.CheckName(flag, rid))
}

// payload is what was given on the command line; - reads standard input.
func (a *app) payload(arg string) ([]byte, error) {
	if arg != "-" {
		return []byte(arg), nil
	}
	data, err := a.readStdin(maxStdin + 1)
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	if len(data) > maxStdin {
		return nil, withCode(ExitUsage, fmt.Errorf("standard input is larger than %d bytes", maxStdin))
	}
	return data, nil
}
