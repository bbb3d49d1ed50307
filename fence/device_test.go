package fence

import "context"

// mute is a device that knows nothing.
type mute string

func (s mute) Name() string                       { return string(s) }
func (mute) Fence(context.Context, Target) Report { return Report{} }
func (mute) Check(context.Context, Target) Report { return Report{} }
