package cluster_test

import (
	"bytes"
	"testing"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// A worker whose arrays lie in host memory and one whose arrays do not cut what goes from one to the other alike.
func TestBothEndsOfAMoveCutItAlike(t *testing.T) {
	drivers := append(separateOn(t, 1, sim.Options{Platform: "cpu"}), separateOn(t, 1, sim.Options{Platform: "sim"})...)
	l, err := cluster.InProcess{Drivers: drivers, Islands: []string{"one", "other"}, Piece: 100}.Start(t.Context())
	statustest.OK(t, err)
	defer l.Close()
	s := begin(t, func(n client.Notify) (client.Cluster, error) {
		return l.ConnectAsking(t.Context(), &wire.Hello{Name: "c", Platforms: []string{"cpu", "sim"}}, n)
	})
	array := shape.Shape{DType: shape.U8, Dims: []int64{32, 32}}
	data := make([]byte, array.HostBytes())
	for i := range data {
		data[i] = byte(i * i)
	}
	for from := range uint32(2) {
		source := s.Array(array, []int{int(from)}, func(int) []byte { return data })
		m := &wire.Transfer{Object: s.Objects(1), Array: &wire.Array{Dtype: uint32(array.DType), Dims: array.Dims},
			Moves: []*wire.Move{{Source: source, From: from, To: 1 - from}}}
		token := s.Tokens(1)
		statustest.OK(t, s.Transfer(m, token))
		statustest.OKf(t, s.Wait(token), "from device %d", from)
		got, err := s.Read(m.Object, int(1-from), array.HostBytes())
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("from device %d came %v, %v", from, got, err)
		}
	}
}
