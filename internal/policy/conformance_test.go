package policy

import (
	"regexp"
	"strings"
	"testing"
)

// TestConformance holds the rules of the design card that speak of the tree itself.
func TestConformance(t *testing.T) {
	tr := repository(t)

	t.Run("CA-1", func(t *testing.T) {
		for _, m := range []string{"github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2", "github.com/nats-io/nuid", "go.uber.org/zap"} {
			if !regexp.MustCompile(`(?m)^\s*(require )?` + regexp.QuoteMeta(m) + ` v[^ \n]+$`).MatchString(tr.text["go.mod"]) {
				t.Errorf("go.mod does not require %s directly", m)
			}
		}
	})

	t.Run("FE-12", func(t *testing.T) {
		text := strings.Join(strings.Fields(strings.ReplaceAll(tr.text["fence/doc.go"], "//", " ")), " ")
		for _, want := range []string{"cannot be fenced", "mail", "payment"} {
			if !strings.Contains(text, want) {
				t.Errorf("the documentation of tokens (fence/doc.go) does not say %q of what checks no token", want)
			}
		}
	})

	t.Run("CA-2", func(t *testing.T) {
		for _, p := range []string{"go.mod", "README.md", "fabric/", "kvlocation/", "channels/", "relocate/", "session/", "cmd/fabricnode/", "cmd/fabric-bench/", "scripts/"} {
			if len(tr.files(func(f string) bool { return f == p || strings.HasSuffix(p, "/") && strings.HasPrefix(f, p) })) == 0 {
				t.Errorf("the top level lacks %s", p)
			}
		}
		if !strings.HasPrefix(tr.text["go.mod"], "module "+module+"\n") {
			t.Errorf("go.mod does not name the module %s", module)
		}
	})
}
