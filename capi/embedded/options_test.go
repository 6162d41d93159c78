package embedded

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	_ "github.com/openpathways/pathways/capi/ffi" // what the frontend links against
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOptionsAreReadOrPassedToThePlugin(t *testing.T) {
	for name, c := range map[string]struct {
		given   []option
		devices int
		limit   int64
		passed  []string
	}{
		"none":                {},
		"ours":                {[]option{{"devices", int64(8)}, {"memory_limit", int64(1 << 40)}}, 8, 1 << 40, nil},
		"numbers as text":     {[]option{{"devices", "8"}, {"memory_limit", "0"}}, 8, 0, nil},
		"the most":            {[]option{{"devices", int64(MaxDevices)}}, MaxDevices, 0, nil},
		"the last one counts": {[]option{{"devices", int64(2)}, {"devices", int64(3)}}, 3, 0, nil},
		"one process of one": {[]option{{"node_id", int64(0)}, {"num_nodes", int64(1)}, {"partition_index", "0"}}, 0,
			0, nil},
		"the plugin's":              {[]option{{"b", []int64{1}}, {"a", true}, {"b", float32(2)}}, 0, 0, []string{"b", "a"}},
		"the plugin's without name": {[]option{{"", "x"}}, 0, 0, []string{""}},
	} {
		o, err := sortOptions(c.given)
		if err != nil || o.Devices != c.devices || o.limit != c.limit || !slices.Equal(o.passed, c.passed) ||
			len(o.Values) != len(c.passed) {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
	for wait, want := range map[any]time.Duration{int64(2): 2 * time.Second, "0.5": time.Second / 2, float32(0): 0} {
		if o, err := sortOptions([]option{{"memory_wait", wait}}); err != nil || o.memoryWait != want {
			t.Errorf("memory_wait %v: %v, %v; want %v", wait, o.memoryWait, err, want)
		}
	}
	o := statustest.Value(sortOptions([]option{{"b", int64(1)}, {"b", "two"}})).OK(t)
	statustest.Equal(t, o.Values["b"], "two", "twice the same option")
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, c := range []struct {
		given option
		code  status.Code
		want  string
	}{
		{option{"devices", int64(0)}, status.InvalidArgument, "devices is 0: expected a number of devices from 1 to 4096"},
		{option{"devices", int64(-1)}, status.InvalidArgument, "devices is -1"},
		{option{"devices", int64(MaxDevices + 1)}, status.InvalidArgument, "devices is 4097"},
		{option{"devices", "eight"}, status.InvalidArgument, `devices is "eight": expected a whole number`},
		{option{"devices", ""}, status.InvalidArgument, `devices is ""`},
		{option{"devices", "8 "}, status.InvalidArgument, `devices is "8 "`},
		{option{"devices", "99999999999999999999"}, status.InvalidArgument, "expected a whole number"},
		{option{"memory_wait", "soon"}, status.InvalidArgument, "memory_wait is soon: expected seconds"},
		{option{"memory_wait", int64(-1)}, status.InvalidArgument, "memory_wait is -1: expected seconds from 0"},
		{option{"devices", float32(8)}, status.InvalidArgument, "devices is 8: expected a whole number"},
		{option{"devices", true}, status.InvalidArgument, "devices is true"},
		{option{"devices", []int64{8}}, status.InvalidArgument, "devices is [8]"},
		{option{"memory_limit", int64(-1)}, status.InvalidArgument,
			"memory_limit is -1: expected bytes a device, or 0 for no limit"},
		{option{"memory_limit", "1GB"}, status.InvalidArgument, `memory_limit is "1GB"`},
		{option{"num_nodes", int64(2)}, status.Unimplemented, "jax.distributed was initialized with 2 processes"},
		{option{"node_id", "first"}, status.InvalidArgument, `node_id is "first"`},
	} {
		_, err := sortOptions([]option{{"devices", int64(1)}, c.given})
		statustest.Fails(t, fmt.Sprint(c.given), err, c.code, c.want)
	}
}

// Options that XLA's CPU plugins would silently ignore are refused, with the list of known ones.
func TestOptionsOfAKind(t *testing.T) {
	known := statustest.Value(sortOptions([]option{{"cpu_device_count", int64(2)}, {"devices", int64(2)}})).OK(t)
	other := statustest.Value(sortOptions([]option{{"cpu_device_cuont", int64(2)}})).OK(t)
	statustest.Check(t, known.check("cpu"))
	statustest.Fails(t, "the error", other.check("cpu"), status.InvalidArgument,
		"no option cpu_device_cuont: the CPU plugin takes cpu_device_count")
	statustest.Checkf(t, other.check("cuda"), "another plugin knows its own options")

	refusal := status.New(status.InvalidArgument, "no such option")
	statustest.Fails(t, "the error", other.explain(refusal), status.InvalidArgument,
		"no such option (options passed on to the plugin: cpu_device_cuont;")
	lost := status.New(status.Unavailable, "no device")
	statustest.Equal(t, other.explain(lost), lost, "not about options")
	statustest.Equal(t, (clientOptions{}).explain(refusal), refusal, "no options")
}

// Every option is accepted by one side, or refused by name.
func FuzzOptions(f *testing.F) {
	f.Add("devices", "8", int64(8), uint8(0))
	f.Add("memory_limit", "-1", int64(-1), uint8(1))
	f.Add("num_nodes", "2", int64(2), uint8(2))
	f.Add("cpu_device_count", "", int64(1), uint8(3))
	f.Fuzz(func(t *testing.T, name, text string, number int64, kind uint8) {
		values := []any{text, number, []int64{number}, float32(number), number != 0}
		value := values[int(kind)%len(values)]
		o, err := sortOptions([]option{{name, value}, {"other", text}})
		if err != nil {
			if c := status.CodeOf(err); c != status.InvalidArgument && c != status.Unimplemented {
				t.Fatal(err)
			}
			if name != "num_nodes" && !strings.HasPrefix(err.Error(), "option "+name+" is ") {
				t.Errorf("the error does not name the option %q: %v", name, err)
			}
			return
		}
		if !slices.Equal(slices.Sorted(slices.Values(o.passed)), slices.Sorted(maps.Keys(o.Values))) {
			t.Errorf("passed %q, values %v", o.passed, o.Values)
		}
		if o.Devices < 0 || o.Devices > MaxDevices || o.limit < 0 {
			t.Errorf("got %+v", o)
		}
		ours := []string{"devices", "memory_limit", "node_id", "num_nodes", "partition_index"}
		if _, passed := o.Values[name]; passed == slices.Contains(ours, name) {
			t.Errorf("option %q: passed on is %v", name, passed)
		}
		if want, err := strconv.ParseInt(text, 10, 64); err == nil && name == "devices" && value == any(text) &&
			int64(o.Devices) != want {
			t.Errorf("%s devices are %d", text, o.Devices)
		}
	})
}
