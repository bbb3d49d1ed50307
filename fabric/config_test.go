package fabric

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/session"
)

// TestConfigErrors: each wrong value is named with its field and what would be right, all of them at once, before
// anything is connected.
func TestConfigErrors(t *testing.T) {
	echo := func(_ context.Context, r *channels.Request) (channels.Reply, error) {
		return channels.Reply{Data: r.Data()}, nil
	}
	anyone := func(context.Context, session.Hello) (session.Identity, error) { return session.Identity{}, nil }
	none := func(context.Context, *objects.Self, []byte) (objects.Object, error) { return nil, nil }
	actor := objects.Type{Name: "a", Class: kvlocation.ClassActor, New: none}
	spot := objects.Type{Name: "a", Class: kvlocation.ClassUserSpot, New: none} // one name, two classes: allowed
	entry := func(name string) objects.Type {
		return objects.Type{Name: name, Class: kvlocation.ClassEntrySpot, New: none}
	}
	for name, tc := range map[string]struct {
		cfg  Config
		want []string
	}{
		"empty":            {Config{}, []string{`Mesh ""`, "1 to 64"}},
		"mesh with a dot":  {Config{Mesh: "a.b"}, []string{`Mesh "a.b"`, "A-Z, a-z, 0-9, _ and -"}},
		"long RID":         {Config{Mesh: "m", RID: strings.Repeat("x", 65)}, []string{"RID", "1 to 64"}},
		"wave":             {Config{Mesh: "m", Wave: "x y"}, []string{`Wave "x y"`}},
		"TTL too short":    {Config{Mesh: "m", LeaseTTL: time.Second}, []string{"lease TTL 1s", "2s to 5m0s"}},
		"TTL not whole":    {Config{Mesh: "m", LeaseTTL: 18*time.Second + time.Millisecond}, []string{"lease TTL 18.001s", "whole seconds"}},
		"clash":            {Config{Mesh: "m", LeaseTTL: 6 * time.Second, LeaseRenew: 3 * time.Second}, []string{"renewal interval 3s", "lease TTL 6s", "margin 1s", "100ms to 2.5s"}},
		"margin above TTL": {Config{Mesh: "m", LeaseTTL: 2 * time.Second, LeaseMargin: 5 * time.Second}, []string{"lease margin 5s", "clashes", "at most", "1s"}},
		"grace":            {Config{Mesh: "m", StoreFailureGrace: -1}, []string{"StoreFailureGrace", "1s to 10m0s"}},
		"timeout":          {Config{Mesh: "m", DefaultTimeout: time.Hour}, []string{"DefaultTimeout 1h0m0s"}},
		"both connections": {Config{Mesh: "m", Conn: &nats.Conn{}, Connect: Connect{URL: "x"}}, []string{"Conn and Connect are both set"}},
		"two credentials":  {Config{Mesh: "m", Connect: Connect{User: "u", Token: "t"}}, []string{"[User Token]"}},
		"context and URL":  {Config{Mesh: "m", Connect: Connect{Context: "c", URL: "u"}}, []string{`Connect.Context "c"`}},
		"half a key pair":  {Config{Mesh: "m", Connect: Connect{CertFile: "c"}}, []string{"KeyFile", "both or neither"}},
		"channel":          {Config{Mesh: "m", Channels: []channels.Spec{{Name: "a"}}}, []string{"Channels[0]", "Handler"}},
		"channel twice":    {Config{Mesh: "m", Channels: []channels.Spec{{Name: "a", Handler: echo}, {Name: "a", Handler: echo}}}, []string{"Channels[1]", `"a" is given twice`}},
		"capacity":         {Config{Mesh: "m", Capacity: -1}, []string{"Capacity -1", "1 to 100000000"}},
		"turns":            {Config{Mesh: "m", MaxTurns: 2_000_000}, []string{"MaxTurns 2000000", "1 to 1000000"}},
		"route TTL":        {Config{Mesh: "m", RouteTTL: 2 * time.Hour}, []string{"RouteTTL 2h0m0s", "1ms to 1h0m0s"}},
		"audit":            {Config{Mesh: "m", AuditRetention: time.Second}, []string{"AuditRetention 1s", "1h0m0s to 87600h0m0s"}},
		"type name":        {Config{Mesh: "m", Types: []objects.Type{{Name: "a.b", Class: kvlocation.ClassActor, New: none}}}, []string{"Types[0]", `"a.b"`}},
		"type class":       {Config{Mesh: "m", Types: []objects.Type{{Name: "a", Class: "actors", New: none}}}, []string{"Types[0]", `"a"`, `Class "actors"`, "user_spot"}},
		"no factory":       {Config{Mesh: "m", Types: []objects.Type{{Name: "a", Class: kvlocation.ClassActor}}}, []string{"Types[0]", `"a"`, "New is required"}},
		"idle actor":       {Config{Mesh: "m", Types: []objects.Type{{Name: "a", Class: kvlocation.ClassActor, New: none, IdleAfter: time.Minute}}}, []string{"Types[0]", "IdleAfter 1m0s", "only instance spots"}},
		"type twice":       {Config{Mesh: "m", Types: []objects.Type{actor, spot, actor}}, []string{"Types[2]", `actor "a" is given twice`, "Types[0]"}},
		"two entry spots":  {Config{Mesh: "m", Types: []objects.Type{entry("a"), entry("b")}}, []string{"Types[1]", `entry_spot "b"`, "one Entry Spot", "Types[0]"}},
		"moves at a time":  {Config{Mesh: "m", Relocation: Relocation{Concurrency: 2000}}, []string{"Relocation.Concurrency 2000", "1 to 1024"}},
		"unit deadline":    {Config{Mesh: "m", Relocation: Relocation{UnitTimeout: time.Hour}}, []string{"Relocation.UnitTimeout 1h0m0s", "2s to 5m0s"}},
		"unit and store":   {Config{Mesh: "m", Relocation: Relocation{UnitTimeout: 4 * time.Second}}, []string{"Relocation.UnitTimeout 4s clashes with the store attempt timeout 2s", "fallback of 1s", "5s"}},
		"follow too long":  {Config{Mesh: "m", Relocation: Relocation{FollowTime: 2 * time.Hour}}, []string{"Relocation.FollowTime 2h0m0s", "1h0m0s"}},
		"follow and route": {Config{Mesh: "m", Relocation: Relocation{FollowTime: 10 * time.Second}}, []string{"Relocation.FollowTime 10s clashes with RouteTTL 15s", "NoFollow"}},
		"follow and not":   {Config{Mesh: "m", Relocation: Relocation{FollowTime: time.Minute, NoFollow: true}}, []string{"Relocation.FollowTime 1m0s clashes with Relocation.NoFollow"}},
		"sessions":         {Config{Mesh: "m", Sessions: &session.Config{}}, []string{"Sessions.Authenticate is required"}},
		"sessions' ranges": {Config{Mesh: "m", Sessions: &session.Config{Authenticate: anyone, Heartbeat: time.Hour}}, []string{"Sessions.Heartbeat 1h0m0s", "20ms to 10m0s"}},
		"worker":           {Config{Mesh: "m", Supervision: Supervision{Worker: strings.Repeat("x", 256)}}, []string{"Supervision.Worker", "1 to 255 bytes"}},
		"beats":            {Config{Mesh: "m", Supervision: Supervision{Every: time.Millisecond}}, []string{"Supervision.Every 1ms", "50ms to 1h0m0s"}},
		"marker":           {Config{Mesh: "m", Supervision: Supervision{MarkerTime: 30 * 24 * time.Hour}}, []string{"Supervision.MarkerTime 720h0m0s", "1s to 168h0m0s"}},
		"self-fencing":     {Config{Mesh: "m", SelfFence: &fence.SelfFence{After: -time.Second}}, []string{"SelfFence.After -1s", "1h0m0s"}},
		"several at once":  {Config{Mesh: "*", RID: ">", StoreFailureGrace: 1}, []string{`Mesh "*"`, `RID ">"`, "StoreFailureGrace 1ns"}},
		"several in a type": {Config{Mesh: "m", Types: []objects.Type{{Name: "a", Class: kvlocation.ClassActor, IdleAfter: time.Minute, MaxState: -1, Members: objects.SpotWide}}},
			[]string{`Types[0]: type "a": New is required`, `Types[0]: type "a": IdleAfter 1m0s`, `Types[0]: type "a": MaxState -1`, `Types[0]: type "a": Members spot_wide`}},
		"several in a channel": {Config{Mesh: "m", Channels: []channels.Spec{{Name: "a.b", Weight: 300, Queue: -1}}},
			[]string{`Channels[0]: Spec.Name "a.b"`, "Channels[0]: Spec.Handler is required", "Channels[0]: Spec.Weight 300", "Channels[0]: Spec.Queue -1"}},
		"several of sessions": {Config{Mesh: "m", Sessions: &session.Config{Heartbeat: time.Hour, MaxSessions: -1}},
			[]string{"Sessions.Authenticate is required", "Sessions.Heartbeat 1h0m0s", "Sessions.MaxSessions -1"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Start(t.Context(), tc.cfg)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q:\n%v", want, err)
				}
			}
		})
	}
	for _, cfg := range []Config{{Mesh: "m"}, {Mesh: "m", RouteTTL: time.Hour}, {Mesh: "m", Relocation: Relocation{NoFollow: true}},
		{Mesh: "m", Sessions: &session.Config{Authenticate: anyone}}, {Mesh: "m", SelfFence: &fence.SelfFence{}}, {Mesh: "m", Types: []objects.Type{actor, spot, entry("a")}}} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("what is right is refused: %v", err)
		}
	}
}
