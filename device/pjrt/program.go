package pjrt

// #include "driver.h"
import "C"

import (
	"math"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/hlo"
	"github.com/openpathways/pathways/core/xla/protowalk"
	"github.com/openpathways/pathways/device"
)

// Formats of programs that plugins return.
const (
	withConfig = "hlo_with_config" // a serialized HloModuleProtoWithConfig
	plainHLO   = "hlo"             // a serialized HloModuleProto
)

// ownMapping is from how many bytes on memory for a program is a mapping of its own, which takes room as it is written
// and is no concern of Go's collector.
const ownMapping = 1 << 20

// room returns memory for a program.
//
// Errors: RESOURCE_EXHAUSTED.
func room(size int) (device.Bytes, error) {
	if size < ownMapping {
		return device.NewBytes(make([]byte, size), nil), nil
	}
	data, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return device.Bytes{}, status.New(status.ResourceExhausted, "there is no memory for the %d bytes of a program: %w",
			size, err)
	}
	return device.NewBytes(data, func() { _ = unix.Munmap(data) }), nil // it was mapped
}

// program returns a compiled program as the plugin writes it. The source of it, if the caller knows it, had so many
// bytes.
//
// A plugin does not keep the program in this form. XLA's makes all of it to say how long it is, and again to write it;
// one of a gigabyte takes it seconds each time. So XLA is given more room than it can need, and is asked once. It does
// not say how much it has written, but after that the room is zero, and no field of a message has the number 0.
func (p *Plugin) program(compiled *C.PJRT_Executable, source int) (format string, code device.Bytes, err error) {
	if source >= ownMapping && p.Kind() == "cpu" {
		format, code, err = p.write(compiled, min(4*source, math.MaxInt32))
		if err == nil {
			code.Data = protowalk.Prefix(code.Data)
			return format, code, nil
		}
		if status.CodeOf(err) != status.InvalidArgument { // as XLA calls it if the room is too small
			return "", device.Bytes{}, err
		}
	}
	var size C.size_t
	var name C.pwdrv_bytes
	if err := p.check(C.pwdrv_executable_program(p.api, compiled, nil, &size, &name)); err != nil {
		return "", device.Bytes{}, err
	}
	return p.write(compiled, int(size))
}

// write has the plugin write a compiled program into room of a size.
func (p *Plugin) write(compiled *C.PJRT_Executable, size int) (format string, code device.Bytes, err error) {
	if code, err = room(max(size, 1)); err != nil {
		return "", device.Bytes{}, err
	}
	written := C.size_t(size)
	var name C.pwdrv_bytes
	if err := p.check(C.pwdrv_executable_program(p.api, compiled, (*C.char)(dataPointer(code.Data)), &written,
		&name)); err != nil {
		code.Release()
		return "", device.Bytes{}, err
	}
	code.Data = code.Data[:min(int(written), size)]
	return goString(name), code, nil
}

// optimized returns a compiled program as a serialized HloModuleProtoWithConfig, see program.
func (p *Plugin) optimized(compiled *C.PJRT_Executable, source int) (device.Bytes, error) {
	format, code, err := p.program(compiled, source)
	if err != nil {
		return device.Bytes{}, err
	}
	switch format {
	case withConfig:
		return code, nil
	case plainHLO:
		defer code.Release()
		return device.NewBytes(protowalk.AppendBytes(nil, 1, code.Data), nil), nil // its module, without a configuration
	}
	code.Release()
	return device.Bytes{}, status.New(status.Unimplemented,
		"plugin %s returns optimized programs as %q, want hlo_with_config", p.path, format)
}

// signature returns what a program says of its parameters, or nil.
func signature(format string, code []byte) *hlo.Signature {
	s, err := hlo.ReadSignature(format, code)
	if err != nil {
		return nil
	}
	return &s
}
