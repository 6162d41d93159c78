package wire

import (
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// Whatever a message says, its JSON says the same.
func TestJSONSaysWhatTheMessageSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &Report_Worker{Process: &Process{Name: rapid.String().Draw(t, "name"), Number: rapid.Uint64().Draw(t, "number")},
			ArrayBytes: rapid.SliceOf(rapid.Int64()).Draw(t, "bytes")}
		e := &Report_Tenant{Name: rapid.String().Draw(t, "tenant"), Got: rapid.Float64().Draw(t, "got")}
		var worker struct {
			Process struct {
				Name   string
				Number uint64
			}
			Array []int64 `json:"array_bytes"`
			Last  *json.RawMessage
		}
		var tenant struct {
			Name string
			Got  float64
		}
		for to, m := range map[any]proto.Message{&worker: w, &tenant: e} {
			text := AppendJSON(nil, m)
			if err := json.Unmarshal(text, to); err != nil {
				t.Fatalf("%v in %s", err, text)
			}
		}
		if worker.Process.Name != w.Process.Name || worker.Process.Number != w.Process.Number || worker.Last == nil ||
			len(worker.Array) != len(w.ArrayBytes) || tenant.Name != e.Name || tenant.Got != e.Got {
			t.Fatalf("%+v and %+v, of %v and %v", worker, tenant, w, e)
		}
		for i, n := range worker.Array {
			if n != w.ArrayBytes[i] {
				t.Fatalf("%v, of %v", worker.Array, w.ArrayBytes)
			}
		}
	})
}
