package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Codes of the server's API errors that say that there are too few servers for the replicas.
const (
	codeNoPeers           = 10005
	codeReplicasOnOneNode = 10074
)

// compareStreams lists the settings that matter and differ.
func compareStreams(want, got jetstream.StreamConfig) []Drift {
	var ds []Drift
	add := func(bad, dangerous bool, field, want, got string) {
		if bad {
			ds = append(ds, Drift{Field: field, Want: want, Got: got, Dangerous: dangerous})
		}
	}
	flag := func(field string, want, got, dangerous bool) {
		add(want != got, dangerous, field, strconv.FormatBool(want), strconv.FormatBool(got))
	}
	limit := func(field string, got int64) {
		add(got > 0, true, field, "unlimited", strconv.FormatInt(got, 10))
	}

	_, ok := epochOf(got.Metadata)
	add(!ok, true, "metadata "+MetaEpoch, "a number above 0", strconv.Quote(got.Metadata[MetaEpoch]))
	add(got.Metadata[MetaMesh] != want.Metadata[MetaMesh], true, "metadata "+MetaMesh,
		want.Metadata[MetaMesh], strconv.Quote(got.Metadata[MetaMesh]))
	add(!slices.Equal(want.Subjects, got.Subjects), true, "subjects", fmt.Sprint(want.Subjects), fmt.Sprint(got.Subjects))
	add(got.Retention != want.Retention, true, "retention", want.Retention.String(), got.Retention.String())
	add(got.Discard != want.Discard, true, "discard", want.Discard.String(), got.Discard.String())
	add(got.MaxMsgsPerSubject != want.MaxMsgsPerSubject, true, "max_msgs_per_subject",
		strconv.FormatInt(want.MaxMsgsPerSubject, 10), strconv.FormatInt(got.MaxMsgsPerSubject, 10))
	limit("max_msgs", got.MaxMsgs)
	limit("max_bytes", got.MaxBytes)
	limit("max_msg_size", int64(got.MaxMsgSize))
	add(got.MaxAge > 0, true, "max_age", "unlimited", got.MaxAge.String())
	add(got.Duplicates < want.Duplicates, true, "duplicate_window", want.Duplicates.String()+" or more", got.Duplicates.String())
	add(got.SubjectDeleteMarkerTTL < want.SubjectDeleteMarkerTTL, true, "subject_delete_marker_ttl",
		want.SubjectDeleteMarkerTTL.String()+" or more", got.SubjectDeleteMarkerTTL.String())
	flag("allow_rollup_hdrs", want.AllowRollup, got.AllowRollup, true)
	flag("allow_direct", want.AllowDirect, got.AllowDirect, true)
	flag("allow_msg_ttl", want.AllowMsgTTL, got.AllowMsgTTL, true)
	flag("allow_atomic", want.AllowAtomicPublish, got.AllowAtomicPublish, true)
	flag("no_ack", want.NoAck, got.NoAck, true)
	flag("sealed", want.Sealed, got.Sealed, true)
	add(got.Mirror != nil || len(got.Sources) > 0, true, "mirror or sources", "none", "some")
	add(got.SubjectTransform != nil, true, "subject_transform", "none", "some")
	add(republish(got.RePublish) != republish(want.RePublish), true, "republish", republish(want.RePublish), republish(got.RePublish))

	flag("deny_delete", want.DenyDelete, got.DenyDelete, false)
	// What was acknowledged must be on disk where it counts; where it need not be, it is only slower.
	add(got.PersistMode != want.PersistMode, want.PersistMode == jetstream.DefaultPersistMode, "persist_mode",
		want.PersistMode.String(), got.PersistMode.String())
	add(got.Storage != want.Storage, false, "storage", want.Storage.String(), got.Storage.String())
	add(got.Replicas != want.Replicas, false, "replicas", strconv.Itoa(want.Replicas), strconv.Itoa(got.Replicas))
	return ds
}

func republish(r *jetstream.RePublish) string {
	if r == nil {
		return "none"
	}
	s := r.Source + " -> " + r.Destination
	if r.HeadersOnly {
		s += " (headers only)"
	}
	return s
}

// createError explains why the server did not make or change a stream.
func (s Setup) createError(ctx context.Context, nc *nats.Conn, want jetstream.StreamConfig, err error) error {
	var apiErr *jetstream.APIError
	if errors.As(err, &apiErr) && s.Replicas > 1 {
		switch {
		case int(apiErr.ErrorCode) == codeReplicasOnOneNode:
			return fmt.Errorf("replicas %d need %d servers in a cluster with JetStream; %s is one server that stands alone: add servers or use replicas 1",
				s.Replicas, s.Replicas, nc.ConnectedUrlRedacted())
		case int(apiErr.ErrorCode) == codeNoPeers:
			return fmt.Errorf("replicas %d need %d servers with JetStream in the cluster %q; the connection knows of %d there and the server says: %s",
				s.Replicas, s.Replicas, nc.ConnectedClusterName(), len(nc.Servers()), apiErr.Description)
		}
	}
	return setupError(ctx, nc, "make or change the stream "+want.Name, err)
}

// unanswered reports that a question to the JetStream API got no answer in its time.
func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
}

// leaderless reports the answer that there is no leader to answer.
func leaderless(err error) bool {
	var apiErr *jetstream.APIError
	return errors.As(err, &apiErr) && int(apiErr.ErrorCode) == codeNotAvailable
}

// forming reports the answer that servers are missing while the servers of a cluster find each other, as when all of them start at
// the same time: the leader has not heard of a member yet and calls it offline, or knows of fewer members than the connection.
func (s Setup) forming(nc *nats.Conn, err error) bool {
	var apiErr *jetstream.APIError
	return errors.As(err, &apiErr) && int(apiErr.ErrorCode) == codeNoPeers && (len(nc.Servers()) >= s.Replicas ||
		strings.Contains(apiErr.Description, "peer offline") || strings.Contains(apiErr.Description, "miscellaneous issue"))
}

// forbidden returns what the server said last, if that was that the user may not do something.
func forbidden(nc *nats.Conn) error {
	if last := nc.LastError(); last != nil && strings.Contains(strings.ToLower(last.Error()), "permissions violation") {
		return last
	}
	return nil
}

// setupError explains an error of the JetStream API in the words of the person who can mend it.
func setupError(ctx context.Context, nc *nats.Conn, doing string, err error) error {
	const noLeader = "JetStream has no leader at the moment (an election takes some seconds, and needs more than half of the servers)"
	at := nc.ConnectedUrlRedacted()
	if at == "" {
		at = "(not connected)"
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s at %s: %w", doing, at, context.Cause(ctx))
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%s at %s: JetStream is not enabled for this account: enable it in the account's configuration: %w", doing, at, err)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%s at %s: JetStream is not enabled on the server (nats-server -js, or a jetstream block in its configuration), or the domain does not exist: %w", doing, at, err)
	case leaderless(err):
		return fmt.Errorf("%s at %s: %s: %w", doing, at, noLeader, err)
	case unanswered(err) && !nc.IsConnected():
		return fmt.Errorf("%s: no answer: the connection is lost: %w", doing, err)
	case unanswered(err):
		if last := forbidden(nc); last != nil {
			return fmt.Errorf("%s at %s: no answer; the user lacks a permission: %w", doing, at, last)
		}
		return fmt.Errorf("%s at %s: no answer: %s, or the user lacks a permission (see the server's log): %w", doing, at, noLeader, err)
	}
	return fmt.Errorf("%s at %s: %w", doing, at, err)
}
