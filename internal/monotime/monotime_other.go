//go:build !linux

package monotime

import "time"

func now() time.Duration { return time.Since(start) }
