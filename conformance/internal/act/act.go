package act

import (
	"context"
	"errors"
	"fmt"
	"time"

	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// Act is one operation at an object. It is text in JSON, so that a test can hand it to another process.
type Act struct {
	// ID is the identity of the operation.
	ID  string      `json:"id"`
	Way history.Way `json:"way"`
	// Class decides between Actors and Spots, and what a creation makes.
	Class objects.Class `json:"class"`
	// Object is its logical ID.
	Object string `json:"object"`
	// Type is that of a creation; Book when empty.
	Type string `json:"type,omitempty"`
	// Generation is that of an exact reference.
	Generation uint64 `json:"generation,omitempty"`
	// Spot and SpotGeneration name the Spot of a Join or Leave.
	Spot           string `json:"spot,omitempty"`
	SpotGeneration uint64 `json:"spot_generation,omitempty"`
	// Instance allows a message to make an Instance Spot.
	Instance bool `json:"instance,omitempty"`
	// At names the node of a creation.
	At string `json:"at,omitempty"`
	// To names the node of a Move; any that fits when it is empty.
	To string `json:"to,omitempty"`
	// Early asks for the acceptance notice of a request.
	Early bool `json:"early,omitempty"`
	// Job is the message, or the creation's input.
	Job job.Job `json:"job"`
	// Payload is sent instead of Job when it is not nil.
	Payload []byte `json:"payload,omitempty"`
	// Timeout bounds the operation.
	Timeout time.Duration `json:"timeout"`
}

// Key is the object's kind and ID, as journals name it.
func (a *Act) Key() string { return job.Object(string(a.Class.Key()), a.Object) }

// Result is how an operation ended for its caller.
type Result struct {
	ID string `json:"id"`
	// Generation is that of the reference that a creation returned.
	Generation uint64 `json:"generation,omitempty"`
	Created    bool   `json:"created,omitempty"`
	Reply      []byte `json:"reply,omitempty"`
	// Failure is set when the operation failed.
	Failure *Failure `json:"failure,omitempty"`
	// Location is the answer of a Find.
	Location objects.Location `json:"location,omitzero"`
	// Moved is the answer of a Move.
	Moved relocate.Moved `json:"moved,omitzero"`

	err error
}

// Failure is an error of the fabric in text, for another process.
type Failure struct {
	Text       string             `json:"text"`
	Kind       outcome.Kind       `json:"kind"`
	Acceptance outcome.Acceptance `json:"acceptance"`
	Remote     bool               `json:"remote"`
	Plain      bool               `json:"plain"` // no error of the fabric
}

// Err is the operation's error.
func (r *Result) Err() error {
	switch f := r.Failure; {
	case r.err != nil || f == nil:
		return r.err
	case f.Plain:
		return errors.New(f.Text)
	default:
		e := outcome.New("act", f.Kind, f.Acceptance, "", f.Text)
		e.Remote = f.Remote
		return e
	}
}

// Via is a program's way to the mesh's objects.
type Via interface {
	Actors() *objects.Actors
	Spots() *objects.Spots
}

// mover is a program that can move its own objects: a node.
type mover interface {
	Move(ctx context.Context, key kvlocation.ObjectKey, generation uint64, to string) (relocate.Moved, error)
}

// Run carries the operation out.
func Run(ctx context.Context, via Via, a *Act) *Result {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	r := &Result{ID: a.ID}
	return r.Fail(r.run(ctx, via, a))
}

// Fail says how the operation failed; nil means that it did not.
func (r *Result) Fail(err error) *Result {
	if r.err = err; r.err != nil {
		r.Failure = &Failure{Text: r.err.Error(), Kind: outcome.KindOf(r.err), Acceptance: outcome.AcceptanceOf(r.err), Plain: true}
		if e := (*outcome.Error)(nil); errors.As(r.err, &e) {
			r.Failure.Remote, r.Failure.Plain = e.Remote, false
		}
	}
	return r
}

func (r *Result) run(ctx context.Context, via Via, a *Act) (err error) {
	var opts []objects.CallOption
	typ := a.Type
	if typ == "" {
		typ = job.Book
	}
	if a.Instance {
		opts = append(opts, objects.WithInstance(typ))
	}
	if a.At != "" {
		opts = append(opts, objects.AtNode(a.At))
	}
	if a.Early {
		opts = append(opts, objects.WithEarlyAcceptance())
	}
	j := a.Job
	j.ID = a.ID
	if j.Do == "" {
		j.Do = job.Reply
	}
	data := j.Encode()
	if a.Payload != nil {
		data = a.Payload
	}
	if a.Way == history.Move {
		node, ok := via.(mover)
		if !ok {
			return fmt.Errorf("act: %T moves nothing", via)
		}
		r.Moved, err = node.Move(ctx, kvlocation.ObjectKey{Kind: a.Class.Key(), ID: a.Object}, a.Generation, a.To)
		return err
	}
	if a.Class.Key() == kvlocation.KindActor {
		return r.actor(ctx, via.Actors(), a, typ, data, opts)
	}
	return r.spot(ctx, via.Spots(), a, typ, data, opts)
}

func (r *Result) actor(ctx context.Context, via *objects.Actors, a *Act, typ string, data []byte, opts []objects.CallOption) (err error) {
	ref, spot := objects.ActorRef{ID: a.Object, Generation: a.Generation}, objects.SpotRef{ID: a.Spot, Generation: a.SpotGeneration}
	switch a.Way {
	case history.Create:
		ref, err = via.Create(ctx, typ, a.Object, data, opts...)
		r.Generation, r.Created = ref.Generation, err == nil
	case history.GetOrCreate:
		ref, r.Created, err = via.GetOrCreate(ctx, typ, a.Object, data, opts...)
		r.Generation = ref.Generation
	case history.Find:
		r.Location, err = via.Find(ctx, a.Object)
	case history.Destroy:
		err = via.Destroy(ctx, ref)
	case history.Release:
		err = via.Release(ctx, ref)
	case history.Join:
		err = via.Join(ctx, ref, spot)
	case history.Leave:
		err = via.Leave(ctx, ref, spot)
	case history.Send:
		err = via.Send(ctx, a.Object, data, opts...)
	case history.Request:
		var reply objects.Reply
		reply, err = via.Request(ctx, a.Object, data, opts...)
		r.Reply = reply.Data
	default:
		err = fmt.Errorf("act: no way %q to an Actor", a.Way)
	}
	return err
}

func (r *Result) spot(ctx context.Context, via *objects.Spots, a *Act, typ string, data []byte, opts []objects.CallOption) (err error) {
	ref := objects.SpotRef{ID: a.Object, Generation: a.Generation}
	switch a.Way {
	case history.Create:
		ref, err = via.Create(ctx, typ, a.Object, data, opts...)
		r.Generation, r.Created = ref.Generation, err == nil
	case history.GetOrCreate:
		ref, r.Created, err = via.GetOrCreate(ctx, typ, a.Object, data, opts...)
		r.Generation = ref.Generation
	case history.Find:
		r.Location, err = via.Find(ctx, a.Object)
	case history.Destroy:
		err = via.Close(ctx, ref)
	case history.Release:
		err = via.Release(ctx, ref)
	case history.Send:
		err = via.Send(ctx, a.Object, data, opts...)
	case history.Request:
		var reply objects.Reply
		reply, err = via.Request(ctx, a.Object, data, opts...)
		r.Reply = reply.Data
	default:
		err = fmt.Errorf("act: no way %q to a Spot", a.Way)
	}
	return err
}
