package objects

import (
	"strings"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/kvlocation"
)

// A value that is not allowed is refused with the field's name; what the store would refuse at every release, too.
func TestConfigCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		set   func(*Config)
		names string // in the error; empty for none
	}{
		{func(c *Config) { c.DefaultTimeout = time.Second }, ""},
		{func(c *Config) { c.AuditRetention = time.Second }, ""},
		{func(c *Config) { c.AuditRetention = time.Second - 1 }, "AuditRetention"},
		{func(c *Config) { c.AuditRetention = MaxAuditRetention + 1 }, "AuditRetention"},
		{func(c *Config) { c.RouteTTL = time.Microsecond }, "RouteTTL"},
		{func(c *Config) { c.DefaultTimeout = channels.MaxTimeout + 1 }, "DefaultTimeout"},
		{func(c *Config) { c.Capacity = -1 }, "Capacity"},
		{func(c *Config) { c.MaxTurns = MaxTurns + 1 }, "MaxTurns"},
		{func(c *Config) { c.RouteCache = MaxRouteCache + 1 }, "RouteCache"},
		{func(c *Config) { c.Mesh = "a.b" }, "Mesh"},
		{func(c *Config) { c.Store = nil }, "Store"},
		{func(c *Config) { c.Lifecycle = 7 }, "Lease"},
		{func(c *Config) { c.Types = []Type{{}} }, "Types"},
	} {
		cfg := Config{
			Mesh: "m", Store: new(kvlocation.Store), Directory: new(kvlocation.Directory), Router: new(channels.Router),
			DefaultTimeout: time.Second,
		}
		c.set(&cfg)
		err := cfg.check()
		if c.names == "" && err != nil || c.names != "" && (err == nil || !strings.Contains(err.Error(), c.names)) {
			t.Errorf("want %q named, got %v", c.names, err)
		}
	}
}
