package transport

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Pass is what a token opens. A cluster has one token of its own, from which those of the
// other passes are made; they cannot be made without it, nor from each other.
type Pass int

const (
	// Operator opens everything. It is the pass of the cluster's own token.
	Operator Pass = iota
	// Worker adds devices.
	Worker
	// Tenant begins sessions, and asks for the status.
	Tenant
)

var passes = []string{"operator", "worker", "tenant"}

func (p Pass) String() string { return passes[p] }

// PassNamed returns the pass of a name.
//
// Errors: INVALID_ARGUMENT.
func PassNamed(name string) (Pass, error) {
	if p := slices.Index(passes, name); p >= 0 {
		return Pass(p), nil
	}
	return 0, status.New(status.InvalidArgument, "there is no role %q; expected operator, worker or tenant", name)
}

const passBytes = 24 // of a token: too many to guess

// Token returns the token of the pass in the cluster whose own token is own.
func (p Pass) Token(own string) string {
	if p == Operator {
		return own
	}
	mac := hmac.New(sha256.New, []byte(own))
	mac.Write([]byte("pathways token of role " + p.String()))
	return p.String() + "-" + hex.EncodeToString(mac.Sum(nil)[:passBytes])
}

// IsOwn returns an error if a token is not a cluster's own, so that no others can be made from it.
//
// Errors: INVALID_ARGUMENT.
func IsOwn(token string) error {
	for _, name := range passes[1:] {
		if strings.HasPrefix(token, name+"-") {
			return status.New(status.InvalidArgument,
				"this is a %s's token, and others are made from the cluster's own; name the file with that", name)
		}
	}
	return nil
}

// passOf returns what a token opens, and whether it is one of this cluster's.
func (c Credentials) passOf(token []byte) (pass Pass, ok bool) {
	if c.Token == "" {
		return Operator, true
	}
	for p := range passes { // all, so that the time tells nothing
		if subtle.ConstantTimeCompare(token, []byte(Pass(p).Token(c.Token))) == 1 {
			pass, ok = Pass(p), true
		}
	}
	return pass, ok
}

// admits returns why the holder of the pass may not come in a role, nil if it may.
func (p Pass) admits(role wire.Role) error {
	const how = "; name the token that `pathways token %s` prints, or the cluster's own, by --token-file or " +
		"PATHWAYS_TOKEN_FILE"
	switch role {
	case wire.Role_ROLE_WORKER, wire.Role_ROLE_MEMBER:
		if p == Tenant {
			return status.New(status.PermissionDenied, "a tenant's token cannot add devices"+how, Worker)
		}
	case wire.Role_ROLE_CLIENT, wire.Role_ROLE_ADMIN:
		if p == Worker {
			return status.New(status.PermissionDenied, "a worker's token cannot begin sessions or ask for the status"+how,
				Tenant)
		}
	}
	return nil
}
