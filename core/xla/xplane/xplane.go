// Package xplane writes profiles in the form that xprof, TensorBoard and JAX's
// ProfileData read: an XSpace, protobuf messages of the TSL profiler. A space has
// planes (a device, or a host), a plane has lines (a timeline each), a line has
// events in time, and an event has named values.
//
// It only encodes: the same space always has the same bytes.
package xplane

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Plane is one device or one host.
type Plane struct {
	ID    int64
	Name  string
	Lines []Line
	Stats []Stat
}

// Line is a timeline. Its events do not overlap, and are sorted by time.
type Line struct {
	ID     int64
	Name   string
	Begin  int64 // ns since the Unix epoch; offsets of events count from it
	Events []Event
}

// Event is something that happened from Begin to End.
type Event struct {
	Name       string
	Begin, End int64 // ns since the Unix epoch
	Stats      []Stat
}

// Stat is a named value: Text, or Number if Text is empty.
type Stat struct {
	Name   string
	Text   string
	Number int64
}

// The numbers of fields, as in TSL's xplane.proto.
const (
	spacePlanes, spaceWarnings = 1, 3

	planeID, planeName, planeLines, planeEvents, planeStatNames, planeStats = 1, 2, 3, 4, 5, 6

	lineID, lineName, lineTimestamp, lineEvents, lineDuration = 1, 2, 3, 4, 9

	eventMetadata, eventOffset, eventDuration, eventStats = 1, 2, 3, 4

	statMetadata, statInt, statString = 1, 4, 5

	metadataID, metadataName = 1, 2
	mapKey, mapValue         = 1, 2
)

const picosecond = 1000 // in a nanosecond

// Append appends a serialized space with these planes. Warnings are for people.
func Append(b []byte, planes []Plane, warnings []string) []byte {
	var part []byte
	for i := range planes {
		part = planes[i].append(part[:0])
		b = protowire.AppendBytes(protowire.AppendTag(b, spacePlanes, protowire.BytesType), part)
	}
	for _, w := range warnings {
		b = text(b, spaceWarnings, w)
	}
	return b
}

// names numbers the names of a plane's events, or of its stats, from 1.
type names struct {
	ids  map[string]uint64
	list []string
}

func (n *names) id(name string) uint64 {
	id, ok := n.ids[name]
	if !ok {
		if n.ids == nil {
			n.ids = map[string]uint64{}
		}
		n.list = append(n.list, name)
		id = uint64(len(n.list))
		n.ids[name] = id
	}
	return id
}

// append appends the names as a map of metadata, which is a list of pairs.
func (n *names) append(b []byte, field protowire.Number) []byte {
	for i, name := range n.list {
		meta := text(number(nil, metadataID, uint64(i+1)), metadataName, name)
		entry := number(nil, mapKey, uint64(i+1))
		entry = protowire.AppendBytes(protowire.AppendTag(entry, mapValue, protowire.BytesType), meta)
		b = protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), entry)
	}
	return b
}

func (p *Plane) append(b []byte) []byte {
	var events, stats names
	b = text(number(b, planeID, uint64(p.ID)), planeName, p.Name)
	var line, event, stat []byte
	for i := range p.Lines {
		l := &p.Lines[i]
		line = text(number(line[:0], lineID, uint64(l.ID)), lineName, l.Name)
		line = number(line, lineTimestamp, uint64(l.Begin))
		if n := len(l.Events); n > 0 {
			line = number(line, lineDuration, uint64(l.Events[n-1].End-l.Begin)*picosecond)
		}
		for j := range l.Events {
			e := &l.Events[j]
			event = number(event[:0], eventMetadata, events.id(e.Name))
			event = number(event, eventOffset, uint64(e.Begin-l.Begin)*picosecond)
			event = number(event, eventDuration, uint64(e.End-e.Begin)*picosecond)
			event, stat = appendStats(event, eventStats, e.Stats, &stats, stat)
			line = protowire.AppendBytes(protowire.AppendTag(line, lineEvents, protowire.BytesType), event)
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, planeLines, protowire.BytesType), line)
	}
	b, _ = appendStats(b, planeStats, p.Stats, &stats, stat)
	return stats.append(events.append(b, planeEvents), planeStatNames)
}

// appendStats appends stats. It uses the memory of buffer, and returns it for reuse.
func appendStats(b []byte, field protowire.Number, list []Stat, known *names, buffer []byte) (out, spare []byte) {
	for i := range list {
		s := &list[i]
		buffer = number(buffer[:0], statMetadata, known.id(s.Name))
		if s.Text != "" {
			buffer = text(buffer, statString, s.Text)
		} else {
			buffer = number(buffer, statInt, uint64(s.Number))
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), buffer)
	}
	return b, buffer
}

func number(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// text writes a string, which must be valid UTF-8 in a message of proto3.
func text(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), strings.ToValidUTF8(s, "\ufffd"))
}
