package spmd

import (
	"reflect"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/protowalk"
	"github.com/openpathways/pathways/core/status"
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

func TestOptions(t *testing.T) {
	none, err := ParseOptions(nil)
	if err != nil || !reflect.DeepEqual(none, Options{Replicas: 1, Partitions: 1}) {
		t.Errorf("no options are %+v, %v", none, err)
	}
	ids := []int64{5, 4, 3, 2, 1, 0}
	with, err := WithAssignment(someOptions(), ids)
	if err != nil {
		t.Fatal(err)
	}
	if with, err = WithAssignment(with, ids); err != nil { // it replaces
		t.Fatal(err)
	}
	o, err := ParseOptions(with)
	if err != nil || !reflect.DeepEqual(o, Options{Replicas: 2, Partitions: 3, Assignment: ids}) {
		t.Errorf("got %+v, %v", o, err)
	}
	one, err := new(Program).OneDevice(with)
	if err != nil {
		t.Fatal(err)
	}
	if o, err = ParseOptions(one); err != nil || !reflect.DeepEqual(o, Options{Replicas: 1, Partitions: 1, Portable: true}) {
		t.Errorf("one device: got %+v, %v", o, err)
	}
	outer, build := takeBuild(one)
	if !slices.Contains(texts(outer), "outer") || !slices.Contains(texts(build), "inner") {
		t.Errorf("unknown fields are lost: %q, %q", texts(outer), texts(build))
	}
	if _, err := WithAssignment(someOptions(), ids[:5]); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("five devices for six: %v", err)
	}
}

func texts(message []byte) (list []string) {
	for f := range protowalk.Fields(message) {
		list = append(list, string(f.Bytes))
	}
	return list
}

func FuzzOptions(f *testing.F) {
	f.Add(someOptions())
	f.Fuzz(func(t *testing.T, options []byte) {
		o, err := ParseOptions(options)
		if err != nil {
			return
		}
		n := o.Replicas * o.Partitions
		if o.Assignment != nil && len(o.Assignment) != n {
			t.Errorf("%d devices for %d shards", len(o.Assignment), n)
		}
		with, err := WithAssignment(options, make([]int64, n))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseOptions(with); err != nil || again.Replicas != o.Replicas || len(again.Assignment) != n {
			t.Errorf("%+v becomes %+v, %v", o, again, err)
		}
	})
}
