package kvlocation

import (
	"fmt"
	"time"

	"natsfabric/internal/wire"
)

// Defaults and limits of a lease.
const (
	DefaultTTL    = 18 * time.Second
	DefaultRenew  = 3 * time.Second
	DefaultMargin = 3 * time.Second

	// MinTTL and MaxTTL bound a lease. The upper bound keeps every wait for a proof within the time in which a
	// write of unknown result may still be judged.
	MinTTL = 2 * time.Second
	MaxTTL = 5 * time.Minute
	// MinRenew bounds what one node asks of the store.
	MinRenew = 100 * time.Millisecond
	// MinMargin is the least reserve for the differences between clocks.
	MinMargin = 200 * time.Millisecond

	maxHost = 255
)

// LeaseConfig says how a node holds its lease.
//
// The defaults ride through one leader election of JetStream (5 to 8 s without writes) without one operation
// refused because of a lease.
type LeaseConfig struct {
	// RID is the node's name in the mesh: 1 to 64 characters of A-Z, a-z, 0-9, _ and -.
	RID string
	// TTL is how long the lease lives on the store without a renewal, in whole seconds from 2 s to 5 min.
	// 0 means 18 s.
	TTL time.Duration
	// Renew is the time between two renewals, at least 100 ms. 0 means a sixth of TTL.
	Renew time.Duration
	// Margin is how long before its end on the store the lease ends here, at least 200 ms. 0 means a sixth of TTL.
	Margin time.Duration
	// Host is written into the lease for people who look at it: at most 255 bytes. Optional.
	Host string
	// MaxWait bounds the wait for another process run's lease to expire. 0 means twice that lease's TTL and 30 s.
	MaxWait time.Duration
	// OnWait is called when AcquireLease starts to wait for another process run's lease, and about every second
	// while it waits. Optional.
	OnWait func(LeaseWait)
}

// LeaseWait says what AcquireLease waits for.
type LeaseWait struct {
	// Holder is the lease as it was read.
	Holder LeaseState
	// Remaining is how long the lease can still live if it is not renewed.
	Remaining time.Duration
}

func (c LeaseConfig) withDefaults() LeaseConfig {
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.Renew == 0 {
		c.Renew = max(c.TTL/6, MinRenew)
	}
	if c.Margin == 0 {
		c.Margin = max(c.TTL/6, MinMargin)
	}
	return c
}

// Validate returns an error that names the field, its value and the allowed range, or the two deadlines that clash.
// attempt is the store's Config.AttemptTimeout (0 means its default).
func (c LeaseConfig) Validate(attempt time.Duration) error {
	c = c.withDefaults()
	if attempt == 0 {
		attempt = DefaultAttemptTimeout
	}
	if err := wire.CheckName("RID", c.RID); err != nil {
		return err
	}
	if len(c.Host) > maxHost {
		return fmt.Errorf("host of %d bytes is not allowed: it must have at most %d", len(c.Host), maxHost)
	}
	switch usable := c.TTL - c.Margin; {
	case c.TTL < MinTTL || c.TTL > MaxTTL || c.TTL%time.Second != 0:
		return fmt.Errorf("lease TTL %v is not allowed: it must be whole seconds from %v to %v", c.TTL, MinTTL, MaxTTL)
	case c.Renew < MinRenew:
		return fmt.Errorf("lease renewal interval %v is not allowed: it must be at least %v", c.Renew, MinRenew)
	case c.Margin < MinMargin:
		return fmt.Errorf("lease margin %v is not allowed: it must be at least %v", c.Margin, MinMargin)
	case c.Margin > c.TTL/2:
		return fmt.Errorf("lease margin %v clashes with lease TTL %v: the margin must be at most half of it, %v", c.Margin, c.TTL, c.TTL/2)
	case 2*c.Renew > usable:
		return fmt.Errorf("lease renewal interval %v clashes with lease TTL %v less margin %v: two renewals must fit, so it must be from %v to %v",
			c.Renew, c.TTL, c.Margin, MinRenew, usable/2)
	case c.Renew+attempt > usable:
		return fmt.Errorf("store attempt timeout %v clashes with lease TTL %v less margin %v and renewal interval %v: one lost answer must not cost the lease, so it must be at most %v",
			attempt, c.TTL, c.Margin, c.Renew, usable-c.Renew)
	}
	return nil
}
