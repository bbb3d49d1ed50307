package cli

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// replies are what the commands write with --json when they succeed.
var replies = map[string]any{
	"init, check": setupReply{}, "nodes": nodesReply{}, "forget": forgetReply{}, "call": callReply{}, "create": createReply{}, "destroy": destroyReply{},
	"objects": objectsReply{}, "locate": locateReply{}, "explain": explainReply{}, "release": releaseReply{}, "relocate": relocateReply{},
	"drain": drainReply{}, "sessions": sessionsReply{}, "supervise policy": policyReply{}, "supervise pause, resume": controlReply{},
	"supervise mark, unmark": markReply{}, "workers": workersReply{}, "incidents": incidentsReply{}, "fence status": fenceStatusReply{},
	"fence test": fenceTestReply{}, "fence confirm": fenceConfirmReply{}, "version": versionReply{},
}

// fields are the names of a struct's JSON fields, those of embedded structs with it.
func fields(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name != "":
			names = append(names, name)
		case f.Anonymous:
			names = append(names, fields(f.Type)...)
		default:
			names = append(names, f.Name)
		}
	}
	return names
}

// The fields that scripts rely on stand in the document, and no others.
func TestJSONIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/fabricnode.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "| Command | Fields beside `ok` |\n")
	if !ok {
		t.Fatal("docs/fabricnode.md has no table of the fields")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	quoted := regexp.MustCompile("`([a-z_0-9]+)`")
	documented := map[string][]string{}
	for _, row := range strings.Split(table, "\n")[1:] {
		cells := strings.Split(row, "|")
		var names []string
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		documented[strings.ReplaceAll(strings.TrimSpace(cells[1]), "`", "")] = names
	}
	for command, reply := range replies {
		want := fields(reflect.TypeOf(reply))
		want = slices.DeleteFunc(want, func(name string) bool { return name == "ok" })
		slices.Sort(want)
		if got := documented[command]; !slices.Equal(got, want) {
			t.Errorf("%s: the document has %q, the program %q", command, got, want)
		}
	}
	if len(documented) != len(replies) {
		t.Errorf("the document has %d commands, the test %d", len(documented), len(replies))
	}
}
