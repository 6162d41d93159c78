package pjrt

import (
	"slices"
	"strconv"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// allocators are the values of XLA_PYTHON_CLIENT_ALLOCATOR.
var allocators = []string{"default", "platform", "bfc", "cuda_async", "vmm", "address"}

// cudaOptions returns the options of the CUDA plugin that JAX's own variables ask for, so that GPUs are
// used here as JAX itself would use them. They are documented at
// https://docs.jax.dev/en/latest/gpu_memory_allocation.html; jaxlib's xla_client.py reads the same ones.
//
// Errors: INVALID_ARGUMENT for a value that JAX would refuse.
func cudaOptions(getenv func(string) string) (map[string]any, error) {
	values := map[string]any{}
	if v := strings.ToLower(getenv("XLA_PYTHON_CLIENT_ALLOCATOR")); v != "" {
		if !slices.Contains(allocators, v) {
			return nil, status.New(status.InvalidArgument, "XLA_PYTHON_CLIENT_ALLOCATOR is %q; expected one of %s", v,
				strings.Join(allocators, ", "))
		}
		values["allocator"] = v
	}
	fraction, name := getenv("XLA_CLIENT_MEM_FRACTION"), "XLA_CLIENT_MEM_FRACTION"
	if old := getenv("XLA_PYTHON_CLIENT_MEM_FRACTION"); old != "" {
		if fraction != "" {
			return nil, status.New(status.InvalidArgument,
				"XLA_CLIENT_MEM_FRACTION and XLA_PYTHON_CLIENT_MEM_FRACTION are both set; unset the latter, which is the old name")
		}
		fraction, name = old, "XLA_PYTHON_CLIENT_MEM_FRACTION"
	}
	if fraction != "" {
		f, err := strconv.ParseFloat(fraction, 32)
		if err != nil || f <= 0 {
			return nil, status.New(status.InvalidArgument,
				"%s is %q; expected the part of a GPU's memory to allocate at the start, such as 0.75", name, fraction)
		}
		values["memory_fraction"] = float32(f)
	}
	if v := getenv("XLA_PYTHON_CLIENT_PREALLOCATE"); v != "" {
		values["preallocate"] = v != "false" && v != "False" && v != "0"
	}
	if v := getenv("XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"); v != "" {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 0 {
			return nil, status.New(status.InvalidArgument,
				"XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB is %q; expected a number of mebibytes", v)
		}
		values["collective_memory_size"] = n << 20
	}
	return values, nil
}
