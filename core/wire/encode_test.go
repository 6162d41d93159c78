package wire_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// A message with text that is not UTF-8, wherever it is, arrives with "?" in its place; the message itself stays.
func TestEveryMessageEncodes(t *testing.T) {
	message := func(bad string) *wire.WorkerOffer {
		return &wire.WorkerOffer{Island: "i" + bad, Addresses: []string{"a", bad}, Identity: []byte("\xff"),
			Devices: []*wire.LocalDevice{{Kind: bad}}, Platform: &wire.Platform{Name: "é",
				Strings: map[string]string{bad: "v", "k": bad}, Ints: map[string]int64{bad + "n": 1}}}
	}
	m := message("\xff\xfe")
	b := wire.Encode([]byte("before"), m)
	got := new(wire.WorkerOffer)
	if err := proto.Unmarshal(b[len("before"):], got); err != nil || !proto.Equal(got, message("?")) {
		t.Errorf("%v arrives, %v", got, err)
	}
	if !proto.Equal(m, message("\xff\xfe")) {
		t.Errorf("the message became %v", m)
	}
}
