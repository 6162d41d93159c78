package cluster_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// A controller admits clients with a token from its file of tenants, reads the file again when told to, and keeps the
// last good contents if the file is invalid.
func TestControllerKnowsItsTenants(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		statustest.OK(t, os.WriteFile(path, []byte(text), mode))
		statustest.OK(t, os.Chmod(path, mode))
		return path
	}
	ada, bob := cluster.NewToken(), cluster.NewToken()
	own := "the cluster's own token"
	write("ada.token", ada+"\n", 0o600)
	write("bob.token", bob, 0o644)
	file := write("tenants.toml", "[tenants.ada]\ntoken-file = \"ada.token\"\nweight = 3\n", 0o644)
	address := "unix:" + filepath.Join(dir, "c")
	again := make(chan os.Signal)
	c := listening(t, cluster.ControllerConfig{Listen: []string{address}, Tenants: file, Again: again,
		Secret: cluster.Secret{Token: own}})
	defer func() {
		statustest.Check(t, c.end())
	}()
	begins := func(token string) error {
		_, err := cluster.Connect(t.Context(), cluster.ClientConfig{Address: address, Secret: cluster.Secret{Token: token}},
			func([]client.Ended) {})
		return err
	}
	ask := func(token string, ask *wire.Ask) (*wire.Report, error) {
		return cluster.Ask(t.Context(), address, cluster.Secret{Token: token}, ask)
	}
	const noDevices = "no devices yet" // so the session was let in as far as tenants are concerned
	statustest.Fails(t, "the error", begins(ada), status.ResourceExhausted, noDevices)
	statustest.Fails(t, "the error", begins(own), status.PermissionDenied, "the credential names none")
	statustest.Fails(t, "the error", begins(bob), status.Unauthenticated, "the token is not this cluster's")
	r, err := ask(ada, nil)
	if err != nil || len(r.Tenants) != 1 || r.Tenants[0].Name != "ada" || r.Tenants[0].Weight != 3 {
		t.Errorf("a tenant sees %v, %v", r.GetTenants(), err)
	}
	_, err = ask(ada, &wire.Ask{ApplyTenants: true})
	statustest.Fails(t, "the error", err, status.PermissionDenied, "a tenant cannot have the file of tenants read again")

	write("tenants.toml", "[tenants.bob]\ntoken-file = \"bob.token\"\n", 0o644)
	_, err = ask(own, &wire.Ask{ApplyTenants: true})
	statustest.Fails(t, "the error", err, status.PermissionDenied,
		"other users can read the token file "+filepath.Join(dir, "bob.token"))
	statustest.Fails(t, "the error", begins(ada), status.ResourceExhausted, noDevices)
	write("bob.token", bob, 0o600)
	statustest.Check(t, statustest.Of(ask(own, &wire.Ask{ApplyTenants: true})))
	if r, err := ask(own, nil); err != nil || len(r.Tenants) != 1 || r.Tenants[0].Name != "bob" {
		t.Errorf("the file was read as %v, %v", r.GetTenants(), err)
	}
	statustest.Fails(t, "the error", begins(bob), status.ResourceExhausted, noDevices)
	statustest.Fails(t, "the error", begins(ada), status.Unauthenticated, "the token is not this cluster's")

	write("tenants.toml", "[tenants.ada]\ntoken-file = \"ada.token\"\n[tenants.default]\n", 0o644)
	again <- syscall.SIGHUP
	again <- syscall.SIGHUP // it is taken when the first has had its effect
	statustest.Fails(t, "the error", begins(ada), status.ResourceExhausted, noDevices)
	statustest.Fails(t, "the error", begins(own), status.ResourceExhausted, noDevices)
	write("tenants.toml", "[tenants.ada]\n", 0o666)
	_, err = ask(own, &wire.Ask{ApplyTenants: true})
	statustest.Fails(t, "the error", err, status.PermissionDenied, "other users can change the file of tenants")
}
