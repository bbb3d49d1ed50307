package relocate

import "testing"

func TestHigher(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"1.0.1", "1.0.0", true}, {"1.0.0", "1.0.1", false}, {"1.0.0", "1.0.0", false}, {"v2", "v1.9.9", true}, {"2.0", "v1.9", true},
		{"1.10.0", "1.9.0", true}, {"1.9.0", "1.10.0", false}, {"1.0.0", "1.0.0-rc1", true}, {"1.0.0-rc1", "1.0.0", false},
		{"1.0.0-rc.2", "1.0.0-rc.1", true}, {"1.0.0-rc.10", "1.0.0-rc.9", true}, {"1.0.0-beta", "1.0.0-alpha", true}, {"1.0.0-alpha", "1.0.0-1", true},
		{"1.0.0+b2", "1.0.0+b1", false}, {"1.0.0.1", "1.0.0", true}, {"1", "", true}, {"", "1", false}, {"b", "a", true},
	} {
		if got := higher(c.a, c.b); got != c.want {
			t.Errorf("higher(%q, %q) = %v", c.a, c.b, got)
		}
	}
}

// Every reason has a text of its own for people.
func TestReasonTexts(t *testing.T) {
	seen := map[string]Reason{}
	for _, r := range []Reason{TargetUnavailable, StoreUnavailable, RelocationDisabled, StateIncompatible, DeadlineExceeded, RelocationFailed, RuntimeNotReady, ShutdownRequested, OperationInProgress} {
		if text := r.Text(); len(text) < 40 || seen[text] != "" {
			t.Errorf("%s: %q", r, text)
		}
		seen[r.Text()] = r
	}
}
