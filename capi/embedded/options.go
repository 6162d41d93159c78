package embedded

/*
#include "embedded.h"

static const char* named_string(const PJRT_NamedValue* v) { return v->string_value; }
static int64_t named_int(const PJRT_NamedValue* v) { return v->int64_value; }
static const int64_t* named_ints(const PJRT_NamedValue* v) { return v->int64_array_value; }
static float named_float(const PJRT_NamedValue* v) { return v->float_value; }
static bool named_bool(const PJRT_NamedValue* v) { return v->bool_value; }
*/
import "C"

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device/pjrt"
)

// MaxDevices bounds the devices that a client may ask for.
const MaxDevices = 4096

// defaultMemoryWait is long for a computation and short for a person; a cluster's controller waits as long.
const defaultMemoryWait = time.Minute

const maxSeconds = 1<<32 - 1 // of an option; far beyond what anyone waits

// clientOptions are the create options of a client, sorted.
type clientOptions struct {
	pjrt.ClientOptions
	limit int64
	// memoryWait is how long something waits for room under the limit.
	memoryWait time.Duration
	passed     []string // names of those passed on to the plugin
}

// option is a create option by its name: a string, int64, []int64, float32 or bool.
type option struct {
	name  string
	value any
}

// options reads a client's create options.
func options(args *C.PJRT_Client_Create_Args) (clientOptions, error) {
	var list []option
	for i := range int(args.num_options) {
		v := (*C.PJRT_NamedValue)(unsafe.Add(unsafe.Pointer(args.create_options),
			uintptr(i)*unsafe.Sizeof(C.PJRT_NamedValue{})))
		name := C.GoStringN(v.name, C.int(v.name_size))
		value, err := named(name, v)
		if err != nil {
			return clientOptions{}, err
		}
		list = append(list, option{name, value})
	}
	return sortOptions(list)
}

// sortOptions separates options: ours, those of jax.distributed, and the plugin's, which are passed on. JAX passes
// options that come from the environment as strings, so a number may be either. If a name occurs twice, the last
// counts.
func sortOptions(list []option) (clientOptions, error) {
	o := clientOptions{ClientOptions: pjrt.ClientOptions{Values: map[string]any{}}, memoryWait: defaultMemoryWait}
	for _, v := range list {
		name, value := v.name, v.value
		switch name {
		case "devices":
			n, err := number(name, value)
			if err != nil {
				return o, err
			}
			if n < 1 || n > MaxDevices {
				return o, status.New(status.InvalidArgument, "option devices is %d: expected a number of devices from 1 to %d", n,
					MaxDevices)
			}
			o.Devices = int(n)
		case "memory_limit":
			n, err := number(name, value)
			if err != nil {
				return o, err
			}
			if n < 0 {
				return o, status.New(status.InvalidArgument,
					"option memory_limit is %d: expected bytes a device, or 0 for no limit", n)
			}
			o.limit = n
		case "memory_wait":
			seconds, err := float(name, value)
			if err != nil {
				return o, err
			}
			if !(seconds >= 0 && seconds <= maxSeconds) {
				return o, status.New(status.InvalidArgument, "option memory_wait is %v: expected seconds from 0 to %d", seconds,
					maxSeconds)
			}
			o.memoryWait = time.Duration(seconds * float64(time.Second))
		case "node_id", "num_nodes", "partition_index":
			// jax.distributed adds these for every backend. One process drives all
			// devices here: a script that says it is the only one runs as it is.
			n, err := number(name, value)
			if err != nil {
				return o, err
			}
			if name == "num_nodes" && n > 1 {
				return o, status.New(status.Unimplemented, "jax.distributed was initialized with %d processes; with Open "+
					"Pathways one process drives all devices, so start the script once and leave jax.distributed.initialize() out", n)
			}
		default:
			if _, again := o.Values[name]; !again {
				o.passed = append(o.passed, name)
			}
			o.Values[name] = value
		}
	}
	return o, nil
}

// cpuOptions are what XLA's CPU plugins accept. Some of them ignore unknown options, so these are refused here.
var cpuOptions = []string{"cpu_device_count"}

// check refuses options that a plugin of this kind would ignore.
func (o clientOptions) check(kind string) error {
	if kind != "cpu" {
		return nil
	}
	for _, name := range o.passed {
		if !slices.Contains(cpuOptions, name) {
			return status.New(status.InvalidArgument,
				"there is no option %s: the CPU plugin takes %s, and Open Pathways itself devices, memory_limit and memory_wait",
				name, strings.Join(cpuOptions, ", "))
		}
	}
	return nil
}

// explain adds to the plugin's refusal which options are known here.
func (o clientOptions) explain(err error) error {
	if len(o.passed) == 0 || status.CodeOf(err) != status.InvalidArgument {
		return err
	}
	slices.Sort(o.passed)
	return status.New(status.InvalidArgument,
		"%w (options passed on to the plugin: %s; Open Pathways itself knows devices, memory_limit and memory_wait)", err,
		strings.Join(o.passed, ", "))
}

func named(name string, v *C.PJRT_NamedValue) (any, error) {
	switch v._type {
	case C.PJRT_NamedValue_kString:
		return C.GoStringN(C.named_string(v), C.int(v.value_size)), nil
	case C.PJRT_NamedValue_kInt64:
		return int64(C.named_int(v)), nil
	case C.PJRT_NamedValue_kInt64List:
		return slices.Clone(unsafe.Slice((*int64)(C.named_ints(v)), v.value_size)), nil
	case C.PJRT_NamedValue_kFloat:
		return float32(C.named_float(v)), nil
	case C.PJRT_NamedValue_kBool:
		return bool(C.named_bool(v)), nil
	}
	return nil, status.New(status.InvalidArgument, "option %s has a value of type %d, which PJRT does not define", name,
		v._type)
}

// float returns seconds, which JAX passes as a whole number, a fraction or a text.
func float(name string, value any) (float64, error) {
	switch v := value.(type) {
	case int64:
		return float64(v), nil
	case float32:
		return float64(v), nil
	case string:
		if n, err := strconv.ParseFloat(v, 64); err == nil {
			return n, nil
		}
	}
	return 0, status.New(status.InvalidArgument, "option %s is %v: expected seconds", name, value)
}

func number(name string, value any) (int64, error) {
	switch v := value.(type) {
	case int64:
		return v, nil
	case string:
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			return n, nil
		}
		return 0, status.New(status.InvalidArgument, "option %s is %q: expected a whole number", name, v)
	}
	return 0, status.New(status.InvalidArgument, "option %s is %v: expected a whole number", name, value)
}
