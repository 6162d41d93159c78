package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"

	"github.com/openpathways/pathways/core/status"
)

// Prove makes the proof that process number is who its controller let in. The key
// is a controller's own; workers get it as their Welcome.Proof, and can so check
// that of any process, while a client's Welcome.Proof is a proof of its own number alone.
func Prove(key []byte, process uint64) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(binary.BigEndian.AppendUint64(nil, process))
	return h.Sum(nil)
}

// CheckProof checks the Hello of a peer against the key of a worker.
//
// Errors: UNAUTHENTICATED.
func CheckProof(key []byte, cluster string, h *Hello) error {
	if h.Cluster != cluster {
		return status.New(status.Unauthenticated,
			"process %d is of cluster %q, this one of %q; has the controller been restarted?", h.Process, h.Cluster, cluster)
	}
	if len(key) == 0 || subtle.ConstantTimeCompare(h.Proof, Prove(key, h.Process)) != 1 {
		return status.New(status.Unauthenticated, "process %d does not prove that the controller let it in", h.Process)
	}
	return nil
}
