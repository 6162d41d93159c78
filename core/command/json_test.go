package command

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

const schemaFile = "../../docs/guides/status.schema.json"

// fits says where a value is not as a schema describes it.
func fits(where string, value any, schema map[string]any) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, where+" "+fmt.Sprintf(format, args...)) }
	kind := schema["type"].(string)
	switch v := value.(type) {
	case map[string]any:
		if kind != "object" {
			say("is an object, want %s", kind)
			break
		}
		properties := schema["properties"].(map[string]any)
		for _, name := range schema["required"].([]any) {
			if _, ok := v[name.(string)]; !ok {
				say("lacks %q", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			of, ok := properties[name].(map[string]any)
			if !ok {
				say("has %q, which the schema does not know", name)
				continue
			}
			wrong = append(wrong, fits(where+"."+name, v[name], of)...)
		}
	case []any:
		if kind != "array" {
			say("is an array, want %s", kind)
			break
		}
		for i, one := range v {
			wrong = append(wrong, fits(fmt.Sprintf("%s[%d]", where, i), one, schema["items"].(map[string]any))...)
		}
	case json.Number:
		if _, err := v.Int64(); kind != "integer" || err != nil {
			say("is %v, want %s", v, kind)
		}
	case string:
		if kind != "string" {
			say("is %q, want %s", v, kind)
		}
	case bool:
		if kind != "boolean" {
			say("is %v, want %s", v, kind)
		}
	default:
		say("is %v, want %s", v, kind)
	}
	return wrong
}

// fitsSchema holds what status printed against the schema of the docs.
func fitsSchema(t *testing.T, out string) {
	t.Helper()
	text := statustest.Value(os.ReadFile(schemaFile)).OK(t)
	var schema map[string]any
	statustest.OK(t, json.Unmarshal(text, &schema))
	var value any
	decoder := json.NewDecoder(strings.NewReader(out))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, wrong := range fits("status", value, schema) {
		t.Error(wrong)
	}
}

// Each key is there, whether there is anything or nothing, and numbers are numbers.
func TestStatusJSON(t *testing.T) {
	for _, r := range []*wire.Report{{}, {
		Cluster: "c", Gangs: 1 << 52, Supervisor: &wire.Report_Supervisor{Pid: 3},
		Islands: []*wire.Report_Island{
			{Workers: []*wire.Report_Worker{{Last: &wire.Heartbeat{MemoryInUse: []int64{-1, 1 << 40}}}, {}}}},
		Sessions: []*wire.Report_SessionReport{
			{Name: "n", User: "u", Host: "h", Slices: []*wire.Report_Slice{{Devices: []*wire.Span{{Count: 1}}}}}},
	}} {
		b := statustest.Value(json.MarshalIndent(json.RawMessage(wire.AppendJSON(nil, r)), "", "  ")).OK(t)
		fitsSchema(t, string(b))
		if r.Gangs > 0 && !strings.Contains(string(b), `"gangs": 4503599627370496`) {
			t.Errorf("a large number is not written as it is:\n%s", b)
		}
	}
}
