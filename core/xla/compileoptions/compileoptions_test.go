package compileoptions

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// options asks for 2 replicas of 3 partitions, with fields that are not known
// here in both messages.
func someOptions() []byte {
	build := protowalk.AppendInt(nil, buildReplicas, 2)
	build = protowalk.AppendInt(build, buildPartitions, 3)
	build = protowalk.AppendInt(build, buildSPMD, 1)
	build = protowalk.AppendBytes(build, 77, "inner")
	options := protowalk.AppendBytes(nil, compileBuildOptions, build)
	return protowalk.AppendBytes(options, 78, "outer")
}

func TestDevicesOfOptionsCanBeReplaced(t *testing.T) {
	none, err := Parse(nil)
	if err != nil || !reflect.DeepEqual(none, Options{Replicas: 1, Partitions: 1}) {
		t.Errorf("no options are %+v, %v", none, err)
	}
	ids := []int64{5, 4, 3, 2, 1, 0}
	with, err := WithDevices(someOptions(), ids)
	statustest.OK(t, err)
	if with, err = WithDevices(with, ids); err != nil { // it replaces
		t.Fatal(err)
	}
	o, err := Parse(with)
	if err != nil || !reflect.DeepEqual(o, Options{Replicas: 2, Partitions: 3, Devices: ids}) {
		t.Errorf("got %+v, %v", o, err)
	}
	one, err := OneDevice(with, nil, nil)
	statustest.OK(t, err)
	if o, err = Parse(one); err != nil || !reflect.DeepEqual(o, Options{Replicas: 1, Partitions: 1, Portable: true}) {
		t.Errorf("one device: got %+v, %v", o, err)
	}
	outer, build := take(one)
	if !slices.Contains(texts(outer), "outer") || !slices.Contains(texts(build), "inner") {
		t.Errorf("unknown fields are lost: %q, %q", texts(outer), texts(build))
	}
	statustest.Fails(t, "five devices for six", statustest.Of(WithDevices(someOptions(), ids[:5])),
		status.InvalidArgument)
}

// Each process writes maps in an order of its own.
func TestMapsByRank(t *testing.T) {
	pair := func(key, value string) []byte {
		return protowalk.AppendBytes(protowalk.AppendBytes(nil, mapKey, key), 2, value)
	}
	type values struct{ latencies, extra, overrides [][]byte }
	write := func(v values) []byte {
		debug := protowalk.AppendBytes(nil, 76, "debug")
		for _, e := range v.latencies {
			debug = protowalk.AppendBytes(debug, debugLatencies, e)
		}
		for _, e := range v.extra {
			debug = protowalk.AppendBytes(debug, debugExtra, e)
		}
		options := someOptions()
		for _, e := range v.overrides {
			options = protowalk.AppendBytes(options, compileOverrides, e)
		}
		return protowalk.AppendBytes(options, compileBuildOptions, protowalk.AppendBytes(nil, buildDebug, debug))
	}
	byRank := func(options []byte) string {
		t.Helper()
		b := statustest.Value(ByRank(options)).OK(t)
		return string(b)
	}
	a, b, c := pair("rtt", "-1"), pair("chunk", "7"), pair("speed", "")
	want := byRank(write(values{[][]byte{a, b, c}, [][]byte{c, a}, [][]byte{b, a}}))
	if got := byRank(write(values{[][]byte{c, a, b}, [][]byte{a, c}, [][]byte{a, b}})); got != want {
		t.Errorf("equal options are\n%q and\n%q", got, want)
	}
	for name, other := range map[string]values{
		"a value":            {[][]byte{a, pair("chunk", "8"), c}, [][]byte{c, a}, [][]byte{b, a}},
		"an entry less":      {[][]byte{a, b}, [][]byte{c, a}, [][]byte{b, a}},
		"in another map":     {[][]byte{a, b}, [][]byte{c, a, c}, [][]byte{b, a}},
		"the last of a key":  {[][]byte{a, b, c, pair("rtt", "2")}, [][]byte{c, a}, [][]byte{b, a}},
		"an entry that lies": {[][]byte{a, b, c[:1]}, [][]byte{c, a}, [][]byte{b, a}},
	} {
		if byRank(write(other)) == want {
			t.Errorf("options that differ in %s are the same", name)
		}
	}
	first, last := pair("rtt", "1"), pair("rtt", "2")
	if byRank(write(values{latencies: [][]byte{first, last}})) == byRank(write(values{latencies: [][]byte{last, first}})) {
		t.Error("the last value of a key counts, and is lost")
	}
	for _, text := range []string{"debug", "inner", "outer"} {
		if !strings.Contains(want, text) {
			t.Errorf("%q is lost", text)
		}
	}
}

func texts(message []byte) (list []string) {
	for f := range protowalk.Fields(message) {
		list = append(list, string(f.Bytes))
	}
	return list
}

func FuzzParse(f *testing.F) {
	f.Add(someOptions())
	f.Add(New(3, 1, []int{2, 0, 1}, false))
	f.Add(New(1, 1, nil, true))
	f.Add([]byte{0x1a, 0x04, 0x20, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, options []byte) {
		o, err := Parse(options)
		if err != nil {
			return
		}
		n := o.Replicas * o.Partitions
		if o.Devices != nil && len(o.Devices) != n {
			t.Errorf("%d devices for %d shards", len(o.Devices), n)
		}
		with := statustest.Value(WithDevices(options, make([]int64, n))).OK(t)
		if again, err := Parse(with); err != nil || again.Replicas != o.Replicas || len(again.Devices) != n {
			t.Errorf("%+v becomes %+v, %v", o, again, err)
		}
		// By rank they say the same, but for devices, and are the same again.
		once := statustest.Value(ByRank(options)).OK(t)
		again, err := Parse(once)
		if err != nil || again.Replicas != o.Replicas || again.Partitions != o.Partitions || again.Portable != o.Portable {
			t.Errorf("%+v by rank becomes %+v, %v", o, again, err)
		}
		for rank, id := range again.Devices {
			if int(id) != rank {
				t.Errorf("rank %d is on device %d", rank, id)
			}
		}
		statustest.Equal(t, string(statustest.Value(ByRank(once)).OK(t)), string(once), "%x became", once)
	})
}

func TestManualOptions(t *testing.T) {
	given := protowalk.AppendBytes(someOptions(), compileArgumentLayouts, "old")
	build := protowalk.AppendInt(nil, buildShardy, 1)
	build = protowalk.AppendInts(build, buildPropagateOut, 1)
	build = protowalk.AppendInts(build, buildPropagateIn, 1)
	given = protowalk.AppendBytes(given, compileBuildOptions, build)
	manual, err := Manual(given, [][]byte{[]byte("first"), []byte("second")}, []byte("result"))
	statustest.OK(t, err)
	o, err := Parse(manual)
	if err != nil || !reflect.DeepEqual(o, Options{Replicas: 2, Partitions: 3}) {
		t.Errorf("got %+v, %v", o, err)
	}
	outer, inner := take(manual)
	var arguments []string
	for f := range protowalk.Fields(outer) {
		if f.Number == compileArgumentLayouts {
			arguments = append(arguments, string(f.Bytes))
		}
	}
	if !slices.Equal(arguments, []string{"first", "second"}) || !slices.Contains(texts(outer), "outer") {
		t.Errorf("arguments %q, all %q", arguments, texts(outer))
	}
	if !slices.Contains(texts(inner), "result") || !slices.Contains(texts(inner), "inner") {
		t.Errorf("of the build %q", texts(inner))
	}
	spmd := false
	for f := range protowalk.Fields(inner) {
		switch f.Number {
		case buildSPMD:
			spmd = f.Value == 1
		case buildShardy, buildPropagateOut, buildPropagateIn:
			t.Errorf("field %d is still there", f.Number)
		}
	}
	if !spmd || !strings.Contains(string(outer), "sharding-propagation") {
		t.Error("the program would not be partitioned, or its shardings looked for")
	}
	statustest.Fails(t, "no options", statustest.Of(Manual([]byte{0xff}, nil, nil)), status.InvalidArgument)
}

func TestManualAgainKeepsWhatManualMade(t *testing.T) {
	given := someOptions()
	manual, err := Manual(given, [][]byte{[]byte("first"), []byte("second")}, []byte("result"))
	statustest.OK(t, err)
	if again, err := ManualAgain(manual, given); err != nil || !slices.Equal(again, manual) {
		t.Errorf("got %q, %v; expected %q", again, err, manual)
	}
}
