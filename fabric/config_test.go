package fabric

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// TestConfigErrors: each wrong value is named with its field and what would be right, all of them at once, before
// anything is connected.
func TestConfigErrors(t *testing.T) {
	echo := func(_ context.Context, r *channels.Request) (channels.Reply, error) {
		return channels.Reply{Data: r.Data()}, nil
	}
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
		"several at once":  {Config{Mesh: "*", RID: ">", StoreFailureGrace: 1}, []string{`Mesh "*"`, `RID ">"`, "StoreFailureGrace 1ns"}},
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
	for _, cfg := range []Config{{Mesh: "m"}, {Mesh: "m", Types: []objects.Type{actor, spot, entry("a")}}} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("what is right is refused: %v", err)
		}
	}
}
