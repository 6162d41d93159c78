package command

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// freeAddress returns an address of this machine at which no process listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l := statustest.Value(net.Listen("tcp", "127.0.0.1:0")).OK(t)
	defer l.Close()
	return "tcp:" + l.Addr().String()
}

// A controller at a port of this machine asks for a token though none was given: this user's commands find it, and
// others are told where it is.
func TestControllerAlwaysHasAToken(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "default", cluster.TokenFile)
	address := freeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan string)
	go func() {
		var out, errs strings.Builder
		if code := Main(ctx, []string{"controller", "--listen", address, "--dir", dir},
			environment(&out, &errs, nil)); code != ExitSuccess {
			ended <- errs.String()
		}
		close(ended)
	}()
	ask := func(variables map[string]string, args ...string) outcome {
		return call(t, variables, append([]string{"status", "--address", address}, args...)...)
	}
	waitFor(t, "the controller", func() bool { return ask(nil, "--dir", dir).code == ExitSuccess })

	_, err := cluster.Ask(t.Context(), address, cluster.Secret{}, &wire.Ask{Stop: true})
	statustest.Fails(t, "stopped without a token", err, status.Unauthenticated, token, "PATHWAYS_TOKEN_FILE")
	ask(nil, "--dir", t.TempDir()).ends(t, ExitFailed, "UNAUTHENTICATED", token)
	ask(map[string]string{"HOME": "/", "PATHWAYS_TOKEN_FILE": token}).ends(t, ExitSuccess)
	ask(map[string]string{"HOME": "/", "PATHWAYS_TOKEN": "guess"}).ends(t, ExitFailed, "not this cluster's")
	secret, err := cluster.SecretOf(func(name string) (string, bool) {
		v, ok := map[string]string{"PATHWAYS_DIR": dir}[name]
		return v, ok
	})
	statustest.Check(t, err)
	statustest.Checkf(t, statustest.Of(cluster.Ask(t.Context(), address, secret, nil)), "a script of this user")

	cancel()
	if errs := <-ended; errs != "" {
		t.Errorf("the controller ended with:\n%s", errs)
	}
	if b, err := os.ReadFile(token); err != nil || len(b) == 0 {
		t.Errorf("the token is not kept: %v", err)
	}
}

// `down` ends a controller that was started by hand where it finds it, and never removes a token that one may need.
func TestDownOfAControllerStartedByHand(t *testing.T) {
	dir := shortDir(t)
	token := at(dir).path(cluster.TokenFile)
	for _, c := range []struct{ listen, found, says string }{
		{"tcp:127.0.0.1:0", "NOT_FOUND", "listens elsewhere uses its token: end that with SIGTERM"},
		{"", "", "has ended"},
	} {
		args := []string{"controller", "--dir", dir}
		if c.listen != "" {
			args = append(args, "--listen", c.listen)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan int, 1)
		go func() {
			var out, errs strings.Builder
			ended <- Main(ctx, args, environment(&out, &errs, nil))
		}()
		waitFor(t, "the controller", func() bool {
			_, err := os.Stat(token)
			_, socket := os.Stat(at(dir).path(cluster.Socket))
			return err == nil && (socket == nil || c.listen != "")
		})
		if c.listen == "" {
			call(t, nil, "up", "--dir", dir).ends(t, ExitFailed, "started by hand")
		}
		code := map[bool]int{true: ExitSuccess, false: ExitFailed}[c.found == ""]
		call(t, nil, "down", "--dir", dir).ends(t, code, c.found, c.says)
		if c.found != "" { // nor does that of a cluster from `up` in the same directory
			statustest.OK(t, at(dir).keep(nil))
			call(t, nil, "down", "--dir", dir).ends(t, ExitSuccess)
		}
		statustest.Checkf(t, statustest.Of(os.Stat(token)), "%q: the token", c.listen)
		if c.found != "" {
			cancel()
		}
		statustest.Equal(t, <-ended, ExitSuccess, "%q: the controller's exit code", c.listen)
		cancel()
	}
}

// `down` does not believe a list of processes that another user may have written.
func TestDownRefusesAnUnsafeDirectory(t *testing.T) {
	c := at(t.TempDir())
	statustest.OK(t, c.directory().Make())
	victim := exec.Command("sleep", "1000")
	statustest.OK(t, victim.Start())
	defer victim.Wait()
	defer victim.Process.Kill()
	pid := victim.Process.Pid
	statustest.OK(t, c.keep([]process{{Name: "victim", PID: pid, Start: started(pid)}}))
	statustest.OK(t, os.Chmod(c.dir, 0o777))
	call(t, nil, "down", "--dir", filepath.Dir(c.dir)).ends(t, ExitFailed, "PERMISSION_DENIED")
	if started(pid) == "" {
		t.Error("the process was ended")
	}
}

// `up` does not put its token into a directory that others can write to.
func TestUpRefusesAnUnsafeDirectory(t *testing.T) {
	dir := t.TempDir()
	statustest.OK(t, os.Mkdir(filepath.Join(dir, "default"), 0o700))
	statustest.OK(t, os.Chmod(filepath.Join(dir, "default"), 0o777))
	call(t, nil, "up", "--dir", dir).ends(t, ExitFailed, "PERMISSION_DENIED", "chmod 700")
	if files, err := os.ReadDir(filepath.Join(dir, "default")); err != nil || len(files) > 0 {
		t.Errorf("files were made: %v, %v", files, err)
	}
}

// Each role's token is another, always the same, and makes no others.
func TestTokensOfRoles(t *testing.T) {
	own := filepath.Join(t.TempDir(), "token")
	statustest.OK(t, os.WriteFile(own, []byte("open sesame\n"), 0o600))
	seen := map[string]string{}
	for _, role := range []string{"operator", "worker", "tenant"} {
		token := call(t, nil, "token", role, "--token-file", own).ends(t, ExitSuccess).out
		statustest.Equal(t, seen[token], "", "other roles with the token of role %s", role)
		statustest.Equal(t, call(t, nil, "token", role, "--token-file", own).out, token, "the token of role %s", role)
		seen[token] = role
	}
	if seen["open sesame\n"] != "operator" {
		t.Errorf("the operator's token is not the cluster's own: %v", seen)
	}
	for token, role := range seen {
		file := filepath.Join(t.TempDir(), role)
		statustest.OK(t, os.WriteFile(file, []byte(token), 0o600))
		if role == "operator" {
			continue
		}
		says := "this is a " + role + "'s token"
		call(t, nil, "token", "tenant", "--token-file", file).ends(t, ExitUsage, says)
		call(t, nil, "controller", "--listen", "unix:"+file+".sock", "--dir", t.TempDir(), "--token-file", file).
			ends(t, ExitFailed, says)
	}
	call(t, nil, "token", "king", "--token-file", own).ends(t, ExitUsage, "tenant") // a role that is none
}
