package bench

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
)

func TestChildAnswersUntilItsInputEnds(t *testing.T) {
	requests, ask := io.Pipe()
	answers, reply := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		defer reply.Close()
		ended <- Child(t.Context(), "idler", "", requests, reply)
	}()
	dec := json.NewDecoder(answers)
	for _, c := range []struct{ request, wantError string }{
		{`{"op":"cpu"}`, ""},
		{`{"op":"fly"}`, `operation "fly" is not known`},
		{`{"op":"start","args":7}`, "cannot unmarshal"},
	} {
		if _, err := io.WriteString(ask, c.request+"\n"); err != nil {
			t.Fatal(err)
		}
		var got response
		if err := dec.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(got.Error, c.wantError) || (got.Error == "") != (c.wantError == "") || (got.Error == "") != (got.Result != nil) {
			t.Errorf("%s: %+v", c.request, got)
		}
	}
	ask.Close()
	if err := <-ended; err != nil {
		t.Errorf("a child whose input has ended: %v", err)
	}
}

func TestOptionErrorsNameTheField(t *testing.T) {
	_, err := Run(t.Context(), Options{Scenarios: []string{"speed"}, Callers: []int{0, 2000}, IdleNodes: 3})
	if err == nil {
		t.Fatal("wrong options are taken")
	}
	for _, want := range []string{"Command is required", `"speed" is not known`, "Callers 0 is", "Callers 2000 is", "IdleNodes 3 is"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

func TestAckSequence(t *testing.T) {
	if n, err := ackSequence([]byte(`{"stream":"KV_B", "seq":1207}`)); n != 1207 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, text := range []string{
		`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 9"},"stream":"KV_B","seq":0}`, `{}`,
	} {
		if _, err := ackSequence([]byte(text)); err == nil {
			t.Errorf("%s is no acknowledgement", text)
		}
	}
}
