package pjrt

// #include "driver.h"
import "C"

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/aot"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/core/xla/hlo"
	"github.com/openpathways/pathways/device"
)

// Executable is a device.Executable. Its description, but for the cost, is read once, when it is made, and known even
// after Close.
type Executable struct {
	client   *Client
	loaded   *C.PJRT_LoadedExecutable
	compiled *C.PJRT_Executable

	name, fingerprint string
	devices           []int
	portable          bool // has no device of its own
	outputs           []device.Output
	memories          []int                  // of outputs, as indices into Device.Memories
	params            *hlo.Signature         // nil if the plugin does not describe them
	optimized         atomic.Pointer[[]byte] // of a program that was compiled here, until it is asked for

	users  atomic.Int32 // like Buffer.users
	closed atomic.Bool
	sizes  atomic.Pointer[[]int64] // of outputs on the device, after the first run

	mu   sync.Mutex
	idle []*C.pwdrv_launch // C arrays of past runs, for later ones
}

// How many launches an executable keeps for later; others are freed.
const maxIdle = 4

// Compile compiles a program for the devices that options name. With nil options it is portable: one shard, on device 0
// or on the device of Run.Only. A plugin cannot be stopped while it compiles, so ctx is checked before it starts.
func (c *Client) Compile(ctx context.Context, p device.Program, options []byte) (device.Executable, error) {
	if ctx.Err() != nil {
		return nil, waitEnded(ctx)
	}
	if options == nil {
		options = compileoptions.New(1, 1, nil, true)
	}
	if err := c.hold(); err != nil {
		return nil, err
	}
	defer c.drop()
	loaded, err := c.compile(p, options)
	if err != nil {
		return nil, err
	}
	return c.executable(loaded, source{p, nil})
}

// compile returns a plugin's executable, which the caller owns. The caller holds the client.
func (c *Client) compile(p device.Program, options []byte) (*C.PJRT_LoadedExecutable, error) {
	format, formatSize := chars(p.Format)
	var loaded *C.PJRT_LoadedExecutable
	if err := c.plugin.check(C.pwdrv_compile(c.plugin.api, c.raw, format, formatSize, (*C.char)(dataPointer(p.Code)),
		C.size_t(len(p.Code)), (*C.char)(dataPointer(options)), C.size_t(len(options)), &loaded)); err != nil {
		if status.CodeOf(err) == status.Unknown {
			// MLIR's errors about a program reach XLA without a code.
			err = &status.Error{Code: status.InvalidArgument, Message: err.Error()}
		}
		return nil, err
	}
	return loaded, nil
}

// Load makes an executable of bytes that Serialize returned.
func (c *Client) Load(ctx context.Context, serialized []byte) (device.Executable, error) {
	if ctx.Err() != nil {
		return nil, waitEnded(ctx)
	}
	if len(serialized) == 0 {
		return nil, status.New(status.InvalidArgument, "no bytes to load an executable from")
	}
	if err := c.hold(); err != nil {
		return nil, err
	}
	defer c.drop()
	serialized = ForLoad(serialized)
	var loaded *C.PJRT_LoadedExecutable
	if err := c.plugin.check(C.pwdrv_load(c.plugin.api, c.raw, (*C.char)(dataPointer(serialized)),
		C.size_t(len(serialized)), &loaded)); err != nil {
		return nil, err
	}
	return c.executable(loaded, source{serialized: serialized})
}

// source is what an executable was made of: a program, or what an executable was serialized to.
type source struct {
	device.Program
	serialized []byte
}

// executable takes a plugin's executable. The caller holds the client.
func (c *Client) executable(loaded *C.PJRT_LoadedExecutable, of source) (device.Executable, error) {
	x := &Executable{client: c, loaded: loaded}
	x.users.Store(1)
	c.opened()
	if err := x.describe(of); err != nil {
		x.Close()
		return nil, status.Wrap(err, "cannot describe a compiled program")
	}
	return x, nil
}

func (x *Executable) describe(of source) error {
	p := x.client.plugin
	if err := p.check(C.pwdrv_loaded_executable(p.api, x.loaded, &x.compiled)); err != nil {
		return err
	}
	var text C.pwdrv_bytes
	if err := p.check(C.pwdrv_executable_name(p.api, x.compiled, &text)); err != nil {
		return err
	}
	x.name = goString(text)
	if err := x.describeDevices(); err != nil {
		return err
	}
	if err := x.describeOutputs(); err != nil {
		return err
	}
	// The rest may be missing.
	if p.check(C.pwdrv_executable_fingerprint(p.api, x.compiled, &text)) == nil {
		x.fingerprint = goString(text)
		if strings.ContainsFunc(x.fingerprint, func(r rune) bool { return r < ' ' || r > '~' }) {
			x.fingerprint = hex.EncodeToString([]byte(x.fingerprint))
		}
	}
	if err := x.describeProgram(of); err != nil {
		return err
	}
	x.describePlaces()
	return nil
}

// describeProgram reads the program's description of its parameters, and keeps the program if it may be asked for. The
// text that a plugin writes has all constants and takes long, so the plugin is asked only if the executable's source
// does not say the same.
func (x *Executable) describeProgram(of source) error {
	keeps := of.serialized == nil
	if keeps && of.Partitioned && of.Format == plainHLO {
		x.params = signature(plainHLO, of.Code)
	} else if !keeps {
		x.params = signature(withConfig, aot.Module(of.serialized))
	}
	if x.params != nil && x.fingerprint != "" {
		if keeps {
			optimized := hlo.WithoutConstants(plainHLO, of.Code)
			x.optimized.Store(&optimized)
		}
		return nil
	}
	format, code, err := x.client.plugin.program(x.compiled, max(len(of.Code), len(of.serialized)))
	if status.CodeOf(err) == status.ResourceExhausted {
		return err // there is no memory for it
	} else if err != nil {
		return nil // it may be missing
	}
	defer code.Release()
	if keeps && format == withConfig {
		optimized := bytes.Clone(hlo.WithoutConstants(withConfig, code.Data))
		x.optimized.Store(&optimized)
	}
	x.params = signature(format, code.Data)
	if x.fingerprint == "" {
		hash := sha256.Sum256(code.Data)
		x.fingerprint = hex.EncodeToString(hash[:])
	}
	return nil
}

// describePlaces finds the results that the program places in another memory than the default one. Older plugins for
// CPUs, whose memories are all the host's, say it in the program only.
func (x *Executable) describePlaces() {
	if x.params == nil || len(x.params.ResultMemories) != len(x.outputs) {
		return
	}
	for i, kind := range x.params.ResultMemories {
		if memory, err := x.client.memory(x.devices[0], kind); err == nil && kind != "" {
			x.memories[i], x.outputs[i].Memory = memory, kind
		}
	}
}

func (x *Executable) describeDevices() error {
	p := x.client.plugin
	var list **C.PJRT_Device
	var count C.size_t
	if err := p.check(C.pwdrv_loaded_devices(p.api, x.loaded, &list, &count)); err != nil {
		return err
	}
	for _, raw := range unsafe.Slice(list, count) {
		local, ok := x.client.local[raw]
		if !ok {
			return status.New(status.Internal, "it is for a device that the client does not have")
		}
		x.devices = append(x.devices, local)
	}
	if len(x.devices) == 0 {
		x.portable = true
		x.devices = []int{0}
	}
	return nil
}

func (x *Executable) describeOutputs() error {
	p := x.client.plugin
	var count C.size_t
	if err := p.check(C.pwdrv_executable_num_outputs(p.api, x.compiled, &count)); err != nil {
		return err
	}
	if count == 0 {
		return nil
	}
	var types *C.PJRT_Buffer_Type
	var dims *C.int64_t
	var ranks *C.size_t
	if err := p.check(C.pwdrv_executable_outputs(p.api, x.compiled, &types, &dims, &ranks)); err != nil {
		return err
	}
	var kinds **C.char
	var sizes *C.size_t
	err := p.check(C.pwdrv_executable_memory_kinds(p.api, x.compiled, &kinds, &sizes))
	if err != nil && status.CodeOf(err) != status.Unimplemented {
		return err
	}
	at := 0
	rank := unsafe.Slice(ranks, count)
	for i, t := range unsafe.Slice(types, count) {
		s := shape.Shape{DType: shape.DType(t)}
		if n := int(rank[i]); n > 0 {
			all := unsafe.Slice((*int64)(unsafe.Pointer(dims)), at+n)
			s.Dims = slices.Clone(all[at:])
			at += n
		}
		kind := ""
		if kinds != nil {
			kind = C.GoStringN(unsafe.Slice(kinds, count)[i], C.int(unsafe.Slice(sizes, count)[i]))
		}
		memory, err := x.client.memory(x.devices[0], kind)
		if err != nil {
			return status.Wrap(err, "output %d", i)
		}
		x.memories = append(x.memories, memory)
		x.outputs = append(x.outputs, device.Output{Shape: s, Memory: x.client.devices[x.devices[0]].Memories[memory].Kind})
	}
	return nil
}

// Name returns the program's name, as the compiler keeps it.
func (x *Executable) Name() string { return x.name }

// Fingerprint returns the plugin's fingerprint of the computation, in hex if it is not text; without one, a hash of the
// optimized program; "" if the plugin has neither.
func (x *Executable) Fingerprint() string { return x.fingerprint }

// Devices returns the local devices of the shards. A portable computation has device 0.
func (x *Executable) Devices() []int { return x.devices }

// Outputs returns the shapes of the results of one shard. They must not be changed.
func (x *Executable) Outputs() []device.Output { return x.outputs }

// Parameters returns the shapes of one shard's arguments, and which of them are donated; known is false if the plugin
// does not describe them.
func (x *Executable) Parameters() (shapes []shape.Shape, donated []int, known bool) {
	if x.params == nil {
		return nil, nil, false
	}
	return x.params.Params, x.params.Donated, true
}

// Optimized returns the program as the compiler left it: a serialized
// HloModuleProtoWithConfig, without the values of long constants.
func (x *Executable) Optimized() ([]byte, error) {
	if kept := x.optimized.Swap(nil); kept != nil {
		return *kept, nil
	}
	if err := x.use(); err != nil {
		return nil, err
	}
	defer x.release()
	code, err := x.client.plugin.optimized(x.compiled, 0)
	if err != nil {
		return nil, err
	}
	defer code.Release()
	return bytes.Clone(hlo.WithoutConstants(withConfig, code.Data)), nil
}

// Cost returns the compiler's count of bytes, all 0 if the plugin has none. The plugin is only asked here, which what
// is loaded seldom comes to: XLA's CPU client writes out the program for it, with all constants.
func (x *Executable) Cost() (device.Cost, error) {
	if err := x.use(); err != nil {
		return device.Cost{}, err
	}
	defer x.release()
	p := x.client.plugin
	var stats [5]C.int64_t
	err := p.check(C.pwdrv_executable_stats(p.api, x.compiled, &stats[0]))
	if status.CodeOf(err) == status.Unimplemented {
		return device.Cost{}, nil
	} else if err != nil {
		return device.Cost{}, err
	}
	return device.Cost{ArgumentBytes: int64(stats[0]), OutputBytes: int64(stats[1]), AliasBytes: int64(stats[2]),
		TempBytes: int64(stats[3]), CodeBytes: int64(stats[4])}, nil
}

// Serialize returns bytes for Load, in the plugin's memory.
func (x *Executable) Serialize() (device.Bytes, error) {
	if err := x.use(); err != nil {
		return device.Bytes{}, err
	}
	defer x.release()
	p := x.client.plugin
	var s C.pwdrv_serialized
	if err := p.check(C.pwdrv_executable_serialize(p.api, x.compiled, &s)); err != nil {
		return device.Bytes{}, err
	}
	return device.NewBytes(unsafe.Slice((*byte)(unsafe.Pointer(s.bytes.data)), s.bytes.size),
		func() { C.pwdrv_serialized_drop(s) }), nil
}

func (x *Executable) use() error {
	for {
		n := x.users.Load()
		if n == 0 || x.closed.Load() {
			return status.New(status.FailedPrecondition, "the executable %s is closed", x.name)
		}
		if x.users.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

func (x *Executable) release() {
	if x.users.Add(-1) > 0 {
		return
	}
	p := x.client.plugin
	for _, l := range x.idle {
		C.free(unsafe.Pointer(l))
	}
	x.idle = nil
	// An error could not be handled here.
	if x.compiled != nil {
		_ = p.check(C.pwdrv_executable_destroy(p.api, x.compiled))
	}
	_ = p.check(C.pwdrv_loaded_destroy(p.api, x.loaded))
	x.client.closedOne()
}

// Close frees the executable after the calls in progress. Runs continue.
func (x *Executable) Close() {
	if !x.closed.Swap(true) {
		x.release()
	}
}
