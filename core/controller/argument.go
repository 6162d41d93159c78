package controller

import (
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// What runs and nodes of plays read. An array that failed is not missing: its error becomes that of what reads it.

// readable returns why a run's arguments cannot be read; nil if they can. It notes the puts that they wait for.
func (st *State) readable(s *session, p *program, at *place, m *wire.Run) error {
	if n := len(p.of.info.Parameters); n > 0 && n != len(m.Inputs) {
		return invalid("program %s takes %s, got %d", p.of.info.Name, status.Count(n, "argument"), len(m.Inputs))
	}
	missing := 0
	for i, id := range m.Inputs {
		if id == 0 {
			missing++
		} else if err := s.has(id, i, at.has, at); err != nil {
			return err
		} else {
			st.awaitArgument(s, s.objects[id])
		}
	}
	for _, mixed := range m.Mixed {
		if mixed == nil || int(mixed.Argument) >= len(m.Inputs) || m.Inputs[mixed.Argument] != 0 {
			return invalid("a mixed argument is not one of the run's, or is there twice")
		}
		missing--
		row := 0
		for _, piece := range mixed.Pieces {
			if piece == nil || piece.Rows == 0 || int(piece.Rows) > len(at.rows)-row {
				return invalid("argument %d: its pieces have other than %d rows, the devices of program %s", mixed.Argument,
					len(at.rows), p.of.info.Name)
			}
			var here set
			for _, d := range at.rows[row : row+int(piece.Rows)] {
				here.add(int(d))
			}
			if err := s.has(piece.Object, int(mixed.Argument), here, nil); err != nil {
				return err
			} else if err := s.objects[piece.Object].asMember(piece.Object); err != nil {
				return err
			}
			st.awaitArgument(s, s.objects[piece.Object])
			row += int(piece.Rows)
		}
		if row != len(at.rows) {
			return invalid("argument %d: its pieces have %d rows and program %s has %d devices", mixed.Argument, row,
				p.of.info.Name, len(at.rows))
		}
	}
	if missing != 0 {
		return invalid("%d arguments name no array", missing)
	}
	return nil
}

// ofAssembled stands for the number of an argument if the array is a piece of an assembled one.
const ofAssembled = -1

// has returns why an argument's array cannot be read on these devices; nil if it can. At is their place, if they are
// all the devices of one.
func (s *session) has(id uint64, argument int, devices set, at *place) error {
	o := s.objects[id]
	switch {
	case o == nil && s.restored:
		return s.forgottenArray(id)
	case o == nil:
		return unusable(argument, id, "is not there; it was freed, or never made")
	case o.err != nil:
		return o.err
	case o.donated:
		return unusable(argument, id, "was donated to an earlier run and cannot be used again")
	case o.place != at && !o.place.has.covers(devices):
		if err := s.lost[id]; err != nil {
			return err
		}
		return unusable(argument, id, "has no shard on some devices of the run; move it there first")
	}
	return nil
}

// unusable is the error of an argument.
func unusable(argument int, id uint64, why string) error {
	if argument == ofAssembled {
		return invalid("a piece of an assembled array: array %d %s", id, why)
	}
	return invalid("argument %d: array %d %s", argument, id, why)
}
