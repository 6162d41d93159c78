package worker

import (
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strconv"
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
		Pieces:      movesInPieces(d),
	}
	if a, ok := d.(interface{ Attributes() map[string]any }); ok {
		describePlatform(o.Platform, a.Attributes())
	}
	o.Platform.Memories = memoryNames(d.Devices())
	o.Platform.Kinds = kinds(d.Devices())
	for i, v := range d.Devices() {
		l := &wire.LocalDevice{Local: uint32(i), Kind: v.Kind, DefaultMemory: uint32(v.Default)}
		for _, m := range v.Memories {
			l.Memories = append(l.Memories, m.Kind)
		}
		if s, err := d.MemoryStats(i); err == nil {
			l.MemoryLimit = max(0, s.Limit)
		}
		if wire.OnHost(d.Platform()) {
			l.HostMemory = host.Memory()
		}
		o.Devices = append(o.Devices, l)
	}
	return o
}

// kinds returns what all devices of each kind say of themselves.
func kinds(devices []device.Device) (all []*wire.DeviceKind) {
	same := map[string]map[string]any{}
	for _, d := range devices {
		of, known := same[d.Kind]
		if !known {
			same[d.Kind] = maps.Clone(d.Attributes)
			continue
		}
		maps.DeleteFunc(of, func(name string, v any) bool { return !reflect.DeepEqual(v, d.Attributes[name]) })
	}
	for _, kind := range slices.Sorted(maps.Keys(same)) {
		k := &wire.DeviceKind{Kind: kind, Strings: map[string]string{}, Ints: map[string]int64{}}
		for name, value := range same[kind] {
			switch v := value.(type) {
			case string:
				k.Strings[name] = v
			case int64:
				k.Ints[name] = v
			}
		}
		if len(k.Strings)+len(k.Ints) > 0 {
			all = append(all, k)
		}
	}
	return all
}

// memoryNames returns how a driver writes its memories, kind by kind, with a place
// for the number: clients number the memories of all workers. Kinds that the driver
// does not write are left out.
func memoryNames(devices []device.Device) (names []*wire.MemoryName) {
	for _, d := range devices {
		for _, m := range d.Memories {
			known := slices.ContainsFunc(names, func(n *wire.MemoryName) bool { return n.Kind == m.Kind })
			if known || m.Text == "" || m.Debug == "" {
				continue
			}
			names = append(names, &wire.MemoryName{
				Kind: m.Kind, Text: unnumbered(m.Text, m.ID), Debug: unnumbered(m.Debug, m.ID)})
		}
	}
	return names
}

// unnumbered puts wire.MemoryNumber for the first number in a text that is id.
func unnumbered(text string, id int) string {
	number := strconv.Itoa(id)
	for from := 0; ; {
		i := strings.Index(text[from:], number)
		if i < 0 {
			return text
		}
		i += from
		from = i + len(number)
		if !isDigit(text, i-1) && !isDigit(text, from) {
			return text[:i] + wire.MemoryNumber + text[from:]
		}
	}
}

func isDigit(text string, i int) bool {
	return i >= 0 && i < len(text) && '0' <= text[i] && text[i] <= '9'
}

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
