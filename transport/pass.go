package transport

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Pass is what a token or a certificate opens. A cluster has one token of its own, from which those of the
// other passes are made; they cannot be made without it, nor from each other. A process that shows both a token
// and a certificate may do what both open.
type Pass int

const (
	// Operator opens everything. It is the pass of the cluster's own token, and of a certificate that names no role.
	Operator Pass = iota
	// Worker adds devices.
	Worker
	// Tenant begins sessions, and asks for the status.
	Tenant
)

// Holder is who shows a token or a certificate: what it opens and, of a tenant with a name, the name.
type Holder struct {
	Pass   Pass
	Tenant string // "" names none
}

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

// holderOf returns who shows a token, and whether it is one of this cluster's.
func (c Credentials) holderOf(token []byte) (h Holder, ok bool) {
	if c.TenantOf != nil {
		if name, known := c.TenantOf(token); known {
			return Holder{Tenant, name}, true
		}
	}
	if c.Token == "" {
		return Holder{}, true
	}
	for p := range passes { // all, so that the time tells nothing
		if subtle.ConstantTimeCompare(token, []byte(Pass(p).Token(c.Token))) == 1 {
			h, ok = Holder{Pass: Pass(p)}, true
		}
	}
	return h, ok
}

// URI is the text by which a certificate, among its subject alternative names, says that it is for the pass, such as
// "pathways://tenant".
func (p Pass) URI() string { return passScheme + "://" + p.String() }

const passScheme = "pathways"

// HolderOf returns who shows a certificate: with the pass whose URI it has, or Operator if it names none. A tenant's
// URI may have a name behind it, such as "pathways://tenant/research".
//
// Errors: UNAUTHENTICATED for several roles, or one that does not exist.
func HolderOf(c *x509.Certificate) (Holder, error) {
	holder, named := Holder{}, ""
	for _, uri := range c.URIs {
		if uri.Scheme != passScheme {
			continue
		}
		text := uri.String()
		h, err := Holder{}, error(nil)
		h.Pass, err = PassNamed(uri.Host)
		if h.Pass == Tenant {
			h.Tenant = strings.TrimPrefix(uri.Path, "/")
		}
		if err != nil || h.URI() != text {
			return Holder{}, status.New(status.Unauthenticated, "the certificate of %s has the URI %s, which is not a role; "+
				"expected %s, %s/NAME, %s or %s", c.Subject, text, Tenant.URI(), Tenant.URI(), Worker.URI(), Operator.URI())
		} else if named != "" && named != text {
			return Holder{}, status.New(status.Unauthenticated,
				"the certificate of %s has the roles %s and %s; make one certificate for each", c.Subject, named, text)
		}
		holder, named = h, text
	}
	return holder, nil
}

// URI is the text by which a certificate says that it is the holder's.
func (h Holder) URI() string {
	if h.Tenant == "" {
		return h.Pass.URI()
	}
	return h.Pass.URI() + "/" + h.Tenant
}

// Serves returns why the holder of a certificate for the pass may not listen where a process dials in a role, nil if it
// may: only an operator's process is a controller, and a tenant's is no worker either.
func (p Pass) Serves(role wire.Role) error {
	controls := role != wire.Role_ROLE_PEER && role != wire.Role_ROLE_PROBE
	switch {
	case p == Tenant, p == Worker && controls:
		what := "a worker"
		if controls {
			what = "a controller"
		}
		return status.New(status.Unauthenticated, "its certificate is that of a %s (%s), which cannot be %s", p, p.URI(),
			what)
	}
	return nil
}

// holder returns who the dialer is by its token and its certificate together, if it may come in its role.
//
// Errors: UNAUTHENTICATED, PERMISSION_DENIED.
func (c Credentials) holder(h *wire.Hello) (Holder, error) {
	holder, ok := c.holderOf([]byte(h.Token))
	if !ok {
		return Holder{}, c.wrongToken(h.Token)
	}
	if err := holder.Pass.admits(h.Role, "token",
		"name the token that `pathways token %s` prints, or the cluster's own, by --token-file or "+
			"PATHWAYS_TOKEN_FILE"); err != nil {
		return Holder{}, err
	}
	if err := c.Certified.Pass.admits(h.Role, "certificate",
		"name a certificate with the URI pathways://%s by --tls-cert and --tls-key (PATHWAYS_TLS_CERT, "+
			"PATHWAYS_TLS_KEY)"); err != nil {
		return Holder{}, err
	}
	switch by := c.Certified.Tenant; {
	case by != "" && holder.Tenant != "" && by != holder.Tenant:
		return Holder{}, status.New(status.PermissionDenied, "the token is that of tenant %s, and the certificate that of "+
			"tenant %s; show those of one tenant", holder.Tenant, by)
	case holder.Tenant == "":
		holder.Tenant = by
	}
	if holder.Pass == Operator {
		holder.Pass = c.Certified.Pass
	}
	return holder, nil
}

// admits returns why the holder of the pass may not come in a role, nil if it may. what is its token or certificate,
// and how says how to show another, of a role that is filled in.
func (p Pass) admits(role wire.Role, what, how string) error {
	switch role {
	case wire.Role_ROLE_WORKER, wire.Role_ROLE_MEMBER:
		if p == Tenant {
			return status.New(status.PermissionDenied, "a tenant's %s cannot add devices; "+how, what, Worker)
		}
	case wire.Role_ROLE_CLIENT, wire.Role_ROLE_ADMIN:
		if p == Worker {
			return status.New(status.PermissionDenied,
				"a worker's %s cannot begin sessions or ask for the status; "+how, what, Tenant)
		}
	}
	return nil
}
