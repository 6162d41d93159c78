package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Records of the log can be searched by session, worker, gang and line of code.
func TestRecordsOfTheLogSayWhatTheyAreAbout(t *testing.T) {
	var said bytes.Buffer
	s := statustest.Value(New(Config{Log: slog.New(slog.NewJSONHandler(&said, nil))})).OK(t)
	defer s.Close()
	s.say(&wire.Report_Event{Kind: wire.EventFault, Text: "it failed", Warn: true, Session: 3, Worker: 5, Gang: 7,
		Line: "train.py:12"}, errors.New("no memory"))
	got := map[string]any{}
	statustest.OK(t, json.Unmarshal(said.Bytes(), &got))
	delete(got, "time")
	want := map[string]any{"level": "WARN", "msg": "it failed", "event": wire.EventFault, "session": 3.0, "worker": 5.0,
		"gang": 7.0, "line": "train.py:12", "reason": "no memory"}
	for name, v := range want {
		statustest.Equal(t, got[name], v, "%s", name)
	}
	statustest.Equal(t, len(got), len(want), "attributes")
	said.Reset()
	s.say(&wire.Report_Event{Kind: wire.EventFault, Text: "it started"}, nil) // nothing is said of what there is not
	clear(got)
	statustest.OK(t, json.Unmarshal(said.Bytes(), &got))
	statustest.Equal(t, len(got), 4, "attributes")
}
