package client

import (
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// JAX makes arrays of shards that were put or computed apart (jax.make_array_from_single_device_arrays), and says so to
// no one: a run just reads shards of several objects, its Mixed arguments. If a second run reads the same ones on the
// same devices, the client has them assembled: one message tells controller and workers once which objects they are,
// and this run and later ones name one object. An array that one run alone reads stays as it is, since to assemble it
// would take a message more; unless the run has many pieces. A run's message is the same for all of its workers, so
// each would be sent all pieces, while of an assembled object each is sent its own.
//
// The assembled object has no memory. It is freed with the first of its members, without which no run can name it.
// A controller that starts again knows of none: those that runs under way read are assembled again, see rejoin.go.

// maxAssemblies bounds what is remembered of arguments that runs have read, assembled or not.
const maxAssemblies = 1 << 14

// maxPieces is how many pieces a run may name itself. They take some 8 bytes each.
const maxPieces = 64

// assemblies is what a session remembers about assembled arrays. The caller of its methods holds remote.order.
type assemblies struct {
	by map[string]*assembly   // by what it is made of
	of map[uint64][]*assembly // by member
}

type assembly struct {
	key     string
	object  uint64 // 0 as long as one run alone has read it
	message []byte // that had it assembled
	members []uint64
}

// keyOf names what an argument is made of: the devices of a program, and the shards that they read.
func keyOf(devices string, pieces []*wire.Piece) string {
	key := append(make([]byte, 0, len(devices)+12*len(pieces)), devices...)
	for _, p := range pieces {
		key = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(key, p.Object), p.Rows)
	}
	return string(key)
}

// read records that a run reads an argument. It returns the argument's record, nil if there are too many to remember.
func (a *assemblies) read(devices string, pieces []*wire.Piece) (known *assembly, again bool) {
	key := keyOf(devices, pieces)
	if known = a.by[key]; known != nil {
		return known, true
	}
	if len(a.by) >= maxAssemblies {
		return nil, false
	}
	if a.by == nil {
		a.by, a.of = map[string]*assembly{}, map[uint64][]*assembly{}
	}
	known = &assembly{key: key}
	a.by[key] = known
	for _, p := range pieces {
		of := a.of[p.Object]
		if len(of) > 0 && of[len(of)-1] == known {
			continue // it has several pieces of it
		}
		known.members = append(known.members, p.Object)
		a.of[p.Object] = append(of, known)
	}
	return known, false
}

// without forgets what objects, which are freed, are members of. It returns what was assembled of them.
func (a *assemblies) without(objects []uint64) (assembled []uint64) {
	if len(a.of) == 0 {
		return nil
	}
	for _, object := range objects {
		for _, x := range a.of[object] {
			if a.by[x.key] != x {
				continue // with another of its members
			}
			delete(a.by, x.key)
			if x.object != 0 {
				assembled = append(assembled, x.object)
			}
			for _, member := range x.members {
				if member == object {
					continue
				}
				a.of[member] = slices.DeleteFunc(a.of[member], func(o *assembly) bool { return o == x })
				if len(a.of[member]) == 0 {
					delete(a.of, member)
				}
			}
		}
		delete(a.of, object)
	}
	return assembled
}

// assemble puts assembled objects in the place of arguments of several, and returns what it knows of those objects. The
// caller holds order.
func (r *remote) assemble(run *wire.Run) (read []*assembly) {
	if run.Only != 0 {
		return nil
	}
	r.mu.Lock()
	devices := r.devices[run.Program]
	r.mu.Unlock()
	if devices == "" {
		return nil
	}
	pieces := 0
	for _, m := range run.Mixed {
		pieces += len(m.Pieces)
	}
	var mixed []*wire.Mixed            // those that stay
	inputs := slices.Clone(run.Inputs) // which are the caller's
	for _, m := range run.Mixed {
		known, again := r.assemblies.read(devices, m.Pieces)
		if known == nil || !again && pieces <= maxPieces {
			mixed = append(mixed, m)
			continue
		}
		if known.object == 0 {
			known.object = r.Objects(1)
			m := &wire.Assemble{Object: known.object, Program: run.Program, Pieces: m.Pieces}
			r.buf, _ = proto.MarshalOptions{}.MarshalAppend(r.buf[:0], m) // numbers alone
			if r.kept.on {
				known.message = slices.Clone(r.buf)
			}
			_ = r.post(wire.KindAssemble, true) // if it fails, the reader gets the error too
		}
		inputs[m.Argument] = known.object
		if r.kept.on {
			read = append(read, known)
		}
	}
	run.Inputs, run.Mixed = inputs, mixed
	return read
}

// keepDevices keeps the devices of a program. The caller holds mu.
func (r *remote) keepDevices(program uint64, rows []uint32) {
	var key []byte
	for _, d := range rows {
		key = binary.LittleEndian.AppendUint32(key, d)
	}
	if r.devices == nil {
		r.devices = map[uint64]string{}
	}
	r.devices[program] = string(key)
}
