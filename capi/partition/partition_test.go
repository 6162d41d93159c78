package partition_test

import (
	"os"
	"testing"

	_ "github.com/openpathways/pathways/capi/cluster" // the frontends, whose C this calls
	"github.com/openpathways/pathways/capi/partition"
	"github.com/openpathways/pathways/core/xla/compileoptions"
)

// In a process without Python the plugin refuses the program itself, and other programs stay as they are.
func TestProgramsWithoutPythonStay(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	two := compileoptions.New(1, 2, nil, false)
	for _, p := range []partition.Program{
		{"mlir", []byte("a program with CustomSPMDPartitioning"), two, false, false},
		{"mlir", []byte("a program with num_batch_dims"), two, false, false},
		{"mlir", []byte("a program with annotate_device_placement"), two, false, false},
		{"mlir", []byte("a program with ragged_all_to_all"), two, false, false},
		{"mlir", []byte("a program with InspectSharding"), compileoptions.New(1, 1, nil, false), false, false},
		{"hlo", []byte("a program with InspectSharding"), two, false, false},
		{"mlir", []byte("InspectSharding"), []byte{0xff}, false, false},
		{"mlir", nil, nil, false, false},
	} {
		got, err := partition.Apply(p)
		if err != nil || got.Format != p.Format || string(got.Code) != string(p.Code) ||
			string(got.Options) != string(p.Options) {
			t.Errorf("%s %q: got %+v, %v", p.Format, p.Code, got, err)
		}
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
