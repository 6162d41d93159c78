package worker

import (
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/cpu"

	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/host"
)

// Offer says what a driver brings to a cluster. Its fingerprint is all that a
// compiled program depends on, as facts with commas between them: the workers of
// an island have one, and programs are kept under it.
func Offer(d device.Driver) *wire.WorkerOffer {
	facts := []string{d.PlatformVersion()}
	if b, ok := d.(interface{ Build() string }); ok {
		facts = append(facts, b.Build())
	}
	facts = append(facts, runtime.GOARCH)
	if d.Platform() == "cpu" { // XLA compiles for these processors, and by their number
		facts = append(facts, fmt.Sprintf("%d processors", runtime.NumCPU()), features())
	}
	o := &wire.WorkerOffer{
		Platform:    &wire.Platform{Name: d.Platform(), Version: d.PlatformVersion()},
		Fingerprint: strings.Join(slices.DeleteFunc(facts, func(f string) bool { return f == "" }), ", "),
	}
	if a, ok := d.(interface{ Attributes() map[string]any }); ok {
		describePlatform(o.Platform, a.Attributes())
	}
	for i, v := range d.Devices() {
		l := &wire.LocalDevice{Local: uint32(i), Kind: v.Kind, DefaultMemory: uint32(v.Default)}
		for _, m := range v.Memories {
			l.Memories = append(l.Memories, m.Kind)
		}
		if s, err := d.MemoryStats(i); err == nil {
			l.MemoryLimit = max(0, s.Limit)
		}
		if onHost(d) {
			l.HostMemory = host.Memory()
		}
		o.Devices = append(o.Devices, l)
	}
	return o
}

// onHost reports whether a driver's devices have no memory but the machine's.
func onHost(d device.Driver) bool { return d.Platform() == "cpu" || d.Platform() == "sim" }

// features names what this machine's processors have beyond their architecture:
// code that uses more ends the process.
func features() string {
	var set reflect.Value
	switch runtime.GOARCH {
	case "amd64":
		set = reflect.ValueOf(cpu.X86)
	case "arm64":
		set = reflect.ValueOf(cpu.ARM64)
	default:
		return ""
	}
	var names []string
	for i := range set.NumField() {
		if name, ok := strings.CutPrefix(set.Type().Field(i).Name, "Has"); ok && set.Field(i).Bool() {
			names = append(names, strings.ToLower(name))
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// describePlatform passes on what a driver's plugin says of itself. Compilers of
// clients read versions there.
func describePlatform(p *wire.Platform, attributes map[string]any) {
	p.Strings, p.Ints = map[string]string{}, map[string]int64{}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		switch v := attributes[name].(type) {
		case string:
			p.Strings[name] = v
		case int64:
			p.Ints[name] = v
		case []int64:
			p.Lists = append(p.Lists, &wire.IntList{Name: name, Values: v})
		}
	}
}
