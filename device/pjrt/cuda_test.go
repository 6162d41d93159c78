package pjrt

import (
	"maps"
	"testing"

	"github.com/openpathways/pathways/core/status"
)

func TestVariablesOfJAXSetTheMemoryOfGPUs(t *testing.T) {
	for _, c := range []struct {
		name string
		set  map[string]string
		want map[string]any
	}{
		{"none", nil, map[string]any{}},
		{"all", map[string]string{"XLA_PYTHON_CLIENT_ALLOCATOR": "BFC", "XLA_CLIENT_MEM_FRACTION": ".5",
			"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB": "3"},
			map[string]any{"allocator": "bfc", "memory_fraction": float32(.5), "preallocate": true,
				"collective_memory_size": int64(3 << 20)}},
		{"the old name", map[string]string{"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.25"},
			map[string]any{"memory_fraction": float32(.25)}},
		{"no preallocation", map[string]string{"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
			map[string]any{"preallocate": false}},
	} {
		got, err := cudaOptions(env(c.set))
		if err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%s: options %v and error %v, want %v", c.name, got, err, c.want)
		}
	}
}

func TestVariablesOfJAXThatMakeNoSenseAreRefused(t *testing.T) {
	for name, set := range map[string]map[string]string{
		"XLA_PYTHON_CLIENT_ALLOCATOR":              {"XLA_PYTHON_CLIENT_ALLOCATOR": "mine"},
		"XLA_CLIENT_MEM_FRACTION":                  {"XLA_CLIENT_MEM_FRACTION": "half"},
		"XLA_PYTHON_CLIENT_MEM_FRACTION":           {"XLA_CLIENT_MEM_FRACTION": ".5", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"},
		"XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB": {"XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB": "-1"},
	} {
		_, err := cudaOptions(env(set))
		refused(t, err, status.InvalidArgument, name)
	}
}

func TestAWorkerCanBeginAtAnotherGPU(t *testing.T) {
	if got := visible(2, 3); len(got) != 3 || got[0] != 2 || got[2] != 4 {
		t.Errorf("three GPUs from the third on are %v", got)
	}
}
