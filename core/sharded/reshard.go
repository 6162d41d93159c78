package sharded

import (
	"slices"

	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/reshard"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Reshard returns a copy of the array in another layout: cut another way, or on other
// devices. Shards move straight from worker to worker. It does not block. It does not
// consume the array, which may be freed at once.
//
// Errors: INVALID_ARGUMENT for a layout that does not fit the array, FAILED_PRECONDITION
// for an array that was freed or donated or whose layout is not known, and the session's
// error if it is lost.
func (a *Array) Reshard(layout Layout) (*Array, error) {
	if err := a.usable(a.session); err != nil {
		return nil, err
	}
	to, moves, err := a.session.way(&a.form, a.object, layout)
	if err != nil {
		return nil, err
	}
	return a.session.transfer(to, moves)
}

// Copy returns a copy of the array on other devices, shard by shard; there must be as many
// devices as shards. The array's layout need not be known. Errors are those of Reshard.
func (a *Array) Copy(devices ...int) (*Array, error) {
	if err := a.usable(a.session); err != nil {
		return nil, err
	}
	to, moves, err := a.session.copies(&a.form, a.object, devices)
	if err != nil {
		return nil, err
	}
	return a.session.transfer(to, moves)
}

// way returns the moves that bring an object into another layout.
func (s *Session) way(from *form, object uint64, layout Layout) (form, []graph.Move, error) {
	if err := from.known(); err != nil {
		return form{}, nil, err
	}
	dims := from.Dims()
	l, err := layout.check(dims, s.Devices())
	if err != nil {
		return form{}, nil, err
	}
	to := form{from.dtype, l, l.shard(dims), true}
	devices, hosts := s.cluster.Devices(), s.cluster.Hosts()
	plan, err := reshard.New(dims, from.shards(), to.shards(), func(d int) reshard.Site {
		return reshard.Site{Worker: devices[d].Worker, Host: hosts[devices[d].Worker]}
	})
	if err != nil {
		return form{}, nil, err
	}
	moves := make([]graph.Move, len(plan.Pieces))
	for i := range plan.Pieces {
		p := &plan.Pieces[i]
		moves[i] = graph.Move{Source: object, From: uint32(plan.From[p.From].Device), To: uint32(plan.To[p.To].Device)}
		if !plan.Whole(p) {
			moves[i].Start, moves[i].Size, moves[i].At, moves[i].Shard = p.Start, p.Size, p.At, from.one()
		}
	}
	return to, moves, nil
}

// copies returns the moves that bring an object's shards to other devices.
func (s *Session) copies(from *form, object uint64, devices []int) (form, []graph.Move, error) {
	l, err := Layout{Devices: append([]int{}, devices...)}.check(nil, s.Devices())
	if err == nil && len(devices) != from.Shards() {
		err = status.New(status.InvalidArgument,
			"an array of %d shards cannot be copied to %d devices shard by shard; use Reshard", from.Shards(), len(devices))
	}
	if err != nil {
		return form{}, nil, err
	}
	to := form{from.dtype, Layout{l.Devices, slices.Clone(from.layout.Tiles)}, from.shard, from.tiled}
	moves := make([]graph.Move, len(devices))
	for i, d := range l.Devices {
		moves[i] = graph.Move{Source: object, From: uint32(from.layout.Devices[i]), To: uint32(d)}
	}
	return to, moves, nil
}

// shards returns the position of each shard in the array.
func (a *form) shards() []reshard.Shard {
	out := make([]reshard.Shard, a.Shards())
	for i, d := range a.layout.Devices {
		out[i] = reshard.Shard{Device: d, Start: a.layout.start(i, a.shard), Size: a.shard}
	}
	return out
}

// transfer submits moves.
func (s *Session) transfer(to form, moves []graph.Move) (*Array, error) {
	a := &Array{form: to, session: s, object: s.cluster.Objects(1)}
	t := &wire.Transfer{Object: a.object, Array: &wire.Array{Dtype: uint32(to.dtype), Dims: to.shard}}
	for _, m := range moves {
		one := &wire.Move{Source: m.Source, From: m.From, To: m.To, Start: m.Start, Size: m.Size, At: m.At}
		if len(m.Size) > 0 {
			one.Shard = &wire.Array{Dtype: uint32(m.Shard.DType), Dims: m.Shard.Dims}
		}
		t.Moves = append(t.Moves, one)
	}
	var token uint64
	token, a.made = s.begin(nil)
	if err := s.cluster.Transfer(t, token); err != nil {
		s.undo(token)
		return nil, err
	}
	return a, nil
}
