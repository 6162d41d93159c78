package command

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status/statustest"
)

// A process with this variable is a command line, not a test: what `up` starts.
const asCommand = "PATHWAYS_TEST_COMMAND"

// With this one as well, it sends SIGTERM to itself between the end of the command and its own.
const signalsItself = "PATHWAYS_TEST_SIGNALS_ITSELF"

func TestMain(m *testing.M) {
	size := os.Getenv(onSmallDisk)
	if size != "" {
		os.Unsetenv(onSmallDisk) // what this process starts is on the same disk
		if err := mountSmallDisk(os.Getenv("HOME"), size); err != nil {
			os.Exit(noSmallDisk)
		}
	}
	if os.Getenv(asCommand) != "" {
		variables := map[string]string{}
		if size != "" {
			variables["HOME"] = os.Getenv("HOME")
		}
		code := Main(context.Background(), os.Args[1:], environment(os.Stdout, os.Stderr, variables))
		if os.Getenv(signalsItself) != "" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		}
		os.Exit(code)
	}
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0") // or each process of a test ends a second later
	goleak.VerifyTestMain(m)
}

func TestEveryCommandSaysWhatItDoesWithAnExample(t *testing.T) {
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		if !cmd.Hidden && (cmd.Long == "" || !strings.Contains(cmd.Example, cmd.CommandPath())) && cmd.HasParent() {
			t.Errorf("%s: want a description and an example, got %q and %q", cmd.CommandPath(), cmd.Long, cmd.Example)
		}
		for _, below := range cmd.Commands() {
			check(below)
		}
	}
	root := (&program{}).root()
	root.InitDefaultHelpCmd() // as cobra does when it runs
	check(root)
}

func TestHelpOfACommandIsWhatItsFlagShows(t *testing.T) {
	for _, name := range [][]string{{"up"}, {"tenants", "apply"}} {
		flag := call(t, nil, append(name, "--help")...).ends(t, ExitSuccess, "Examples:", "--help")
		command := call(t, nil, append([]string{"help"}, name...)...).ends(t, ExitSuccess)
		statustest.Equal(t, command.out, flag.out, "the help of %v", name)
	}
}

func TestWrongUseIsExplained(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pathways.toml")
	statustest.OK(t, os.WriteFile(file, []byte("color = \"red\"\n"), 0o600))
	short := map[string]string{"HOME": "/tmp"}
	for _, c := range []struct {
		name      string
		variables map[string]string
		args      []string
		want      string
	}{
		{"nothing", short, nil, "expected a command"},
		{"command", short, []string{"fly"}, "unknown command"},
		{"help of a command", short, []string{"help", "tenant"}, "did you mean tenants"},
		{"help of a command below another", short, []string{"help", "tenants", "fly"}, "unknown command \"tenants fly\""},
		{"flag", short, []string{"up", "--wings", "2"}, "unknown flag"},
		{"number", short, []string{"up", "--workers", "many"}, "--help"},
		{"page", short, []string{"up", "--http", "127.0.0.1:0"}, "such as 127.0.0.1:8080"},
		{"no workers", short, []string{"up", "--workers", "0"}, "at least 1"},
		{"devices", short, []string{"up", "--devices", "-1"}, "at least 1"},
		{"memory", short, []string{"up", "--memory-limit", "plenty"}, "such as 4GiB"},
		{"memory of a worker", map[string]string{"HOME": t.TempDir()},
			[]string{"worker", "--address", "unix:x", "--memory-limit", "-1"}, "such as 4GiB"},
		{"first device", map[string]string{"HOME": t.TempDir()},
			[]string{"worker", "--address", "unix:x", "--first-device", "2"}, "expected both"},
		{"no directory", short, []string{"certs"}, "certs --help"},
		{"no role", short, []string{"token"}, "expected `pathways token ROLE`"},
		{"argument too many", short, []string{"status", "now"}, "status --help"},
		{"argument too many of a command below another", short, []string{"tenants", "apply", "tenants.toml"},
			"tenants apply --help"},
		{"argument", short, []string{"up", "train.py"}, "after --"},
		{"variable", map[string]string{"HOME": "/tmp", "PATHWAYS_WORKERS": "some"}, []string{"up"}, "PATHWAYS_WORKERS"},
		{"cluster", short, []string{"up", "--cluster", "../x"}, "letters, digits"},
		{"dir", short, []string{"up", "--dir", "/" + strings.Repeat("d", 100)}, "too long"},
		{"home", nil, []string{"up"}, "--dir"},
		{"line", short, []string{"up", "--config", file}, "color"},
		{"file", short, []string{"up", "--config", file + "x"}, "pathways.tomlx: no such file"},
		{"order", map[string]string{"HOME": t.TempDir()},
			[]string{"controller", "--listen", "unix:x", "--order", "lifo"}, "fifo or fair"},
		{"dispatch", map[string]string{"HOME": t.TempDir()},
			[]string{"controller", "--listen", "unix:x", "--dispatch", "both"}, "parallel or sequential"},
		{"log", map[string]string{"HOME": t.TempDir()}, []string{"controller", "--listen", "unix:x", "--log", "loud"},
			"debug, info"},
		{"controller's address", map[string]string{"HOME": t.TempDir(), "PATHWAYS_ADDRESS": "tcp:head:1"},
			[]string{"controller"}, "--listen tcp:head:1"},
		{"worker's address", map[string]string{"HOME": t.TempDir()}, []string{"worker", "--address", "tcp:head:1"},
			"--listen"},
	} {
		t.Run(c.name, func(t *testing.T) { call(t, c.variables, c.args...).ends(t, ExitUsage, c.want) })
	}
}

// What a flag says wins over the variable, and the variable over the file.
func TestFlagsPrecedeVariablesAndVariablesTheFile(t *testing.T) {
	dir := t.TempDir()
	clusters(t, dir, "of-file", "of-variable", "of-flag")
	file := filepath.Join(dir, "pathways.toml")
	statustest.OK(t, os.WriteFile(file, []byte("dir = \""+dir+"\"\ncluster = \"of-file\"\nheartbeat = \"2s\"\n"),
		0o600))
	for _, c := range []struct {
		variables map[string]string
		args      []string
		want      string
	}{
		{nil, nil, "of-file"},
		{map[string]string{"PATHWAYS_CLUSTER": "of-variable"}, nil, "of-variable"},
		{map[string]string{"PATHWAYS_CLUSTER": "of-variable"}, []string{"--cluster", "of-flag"}, "of-flag"},
	} {
		got := call(t, c.variables, append([]string{"address", "--config", file}, c.args...)...).ends(t, ExitSuccess)
		want := "unix:" + filepath.Join(dir, c.want, cluster.Socket)
		statustest.Equal(t, strings.TrimSpace(got.out), want, "with %v and %v the address", c.variables, c.args)
	}
}

func TestAListIsWhatAllItsFlagsSay(t *testing.T) {
	for said, want := range map[string][]string{
		"":                                  {"of-variable"},
		"--listen a":                        {"a"},
		"--listen a --listen b,c --listen=": {"a", "b", "c"},
	} {
		flags := new(program).controller().Flags()
		statustest.OK(t, flags.Parse(strings.Fields(said)))
		statustest.OK(t, settle(flags, func(name string) (string, bool) {
			return map[string]string{"PATHWAYS_LISTEN": "of-variable"}[name], name == "PATHWAYS_LISTEN"
		}))
		statustest.EqualSlices(t, settings{flags}.list("listen"), want, "with %q, the addresses", said)
	}
}

// clusters puts sockets into a directory as clusters have them, without anything that listens.
func clusters(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		statustest.OK(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		statustest.OK(t, os.WriteFile(filepath.Join(dir, name, cluster.Socket), nil, 0o600))
	}
}

// What names a cluster that is not there says which there are.
func TestNoSuchCluster(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, want string }{
		{"none", "NOT_FOUND: there is no cluster \"nosuch\": " + dir + " has none; start one with `pathways up`"},
		{"", "NOT_FOUND: there is no cluster \"nosuch\" in " + dir + ", which has a, b; name one of them with --cluster"},
	} {
		for _, command := range []string{"address", "status", "why", "queue", "events", "tenants", "tenants apply", "down"} {
			got := call(t, nil, append(strings.Fields(command), "--dir", dir, "--cluster", "nosuch")...)
			statustest.Equal(t, got.ends(t, ExitFailed, c.want).out, "", "the output of %s", command)
		}
		if c.name == "none" {
			clusters(t, dir, "b", "a")
			statustest.OK(t, os.Mkdir(filepath.Join(dir, "past"), 0o700))
		}
	}
}

// A cluster that a flag names is meant, also where the shell has the address of another for scripts.
func TestAClusterThatAFlagNames(t *testing.T) {
	dir := t.TempDir()
	clusters(t, dir, "a")
	env := map[string]string{"PATHWAYS_ADDRESS": "unix:/elsewhere/controller.sock", "HOME": dir}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--dir", dir, "--cluster", "a"}, filepath.Join(dir, "a", cluster.Socket)},
		{nil, "/elsewhere/controller.sock"},
		{[]string{"--cluster", "a", "--address", "unix:/said/controller.sock"}, "/said/controller.sock"},
	} {
		call(t, env, append([]string{"status"}, c.args...)...).ends(t, ExitFailed, c.want)
	}
}

// Scripts look up what the file says, too, behind variables.
func TestScriptsReadConfigBehindVariables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pathways.toml")
	statustest.OK(t, os.WriteFile(file, []byte("token-file = \"/f\"\nbatch = false\nwait = 5\n"), 0o600))
	env := map[string]string{"PATHWAYS_CONFIG": file, "PATHWAYS_WAIT": "7", "PATHWAYS_TLS_CA": ""}
	of := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	lookup := statustest.Value(Lookup(of)).OK(t)
	for name, want := range map[string]string{"PATHWAYS_TOKEN_FILE": "/f", "PATHWAYS_BATCH": "false", "PATHWAYS_WAIT": "7",
		"PATHWAYS_TLS_CA": ""} {
		if got, _ := lookup(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	env["PATHWAYS_CONFIG"] = file + "x"
	if _, err := Lookup(of); err == nil {
		t.Error("a file that is not there is no error")
	}
}

// A line that is wrong is named by file and line, whether the command takes its option or not.
func TestWrongLinesOfTheConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pathways.toml")
	for _, c := range []struct{ text, want string }{
		{"wait = 5\nadress = \"unix:/x\"\n",
			"line 2: there is no option \"adress\"; expected lines of the form name = value, such as wait = \"1m\", and the " +
				"names are address, batch,"},
		{"# here\n\n[worker]\ndevices = 2\n", "line 3: there is no option \"worker\""},
		{"config = \"other\"", "line 1: there is no option \"config\""},
		{"wait = 5\nwait = 6\n", "line 2: Key 'wait' has already been defined.; expected lines"},
		{"batch = True", "line 1: expected value but found \"True\" instead; expected lines"},
		{"log = \"info\"\nwait = soon\n",
			"line 2: expected value but found \"soon\" instead; a text needs quotes: \"soon\"; expected lines of the form " +
				"name = value"},
		{"cluster = default # mine\n",
			"line 1: expected value but found \"default\" instead; a text needs quotes: \"default\"; expected lines"},
		{"dir = /tmp/x", "line 1: expected value but found '/' instead; a text needs quotes: \"/tmp/x\"; expected lines"},
		{"\nwait = \"soon\"\n", "line 2: wait is \"soon\"; expected a time, such as 1m0s"},
		{"batch = 7\n", "line 1: batch is \"7\"; expected true or false, such as true"},
		{"devices = 1.5\n", "line 1: devices is \"1.5\"; expected a whole number, such as 0"},
		{"listen = [\"a\"]\n", "line 1: the value of listen is a list, a table or a date; expected a text in quotes"},
		{"wait = 1\nnodes = \"x\"\nbatch = 2\n", "line 2: nodes is"},
	} {
		statustest.OK(t, os.WriteFile(file, []byte(c.text), 0o600))
		call(t, map[string]string{"HOME": "/tmp"}, "address", "--config", file).ends(t, ExitUsage, file+", "+c.want)
		if _, err := Lookup(environment(nil, nil, map[string]string{"PATHWAYS_CONFIG": file}).Lookup); err == nil ||
			!strings.Contains(err.Error(), file+", "+c.want) {
			t.Errorf("%q: scripts get %v\nexpected %s", c.text, err, c.want)
		}
	}
}

func TestSizesAreReadWithUnits(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0, "0": 0, "1234": 1234, "4GiB": 4 << 30, "1.5 MiB": 3 << 19, "500MB": 5e8, "7B": 7, "2KiB": 2048, "1TB": 1e12} {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.String("memory-limit", text, "")
		statustest.Equal(t, statustest.Value((settings{flags}).size("memory-limit")).OK(t), want, "bytes of %q", text)
	}
	for _, text := range []string{"-1", "many", "4G4", "GiB", "NaN", "1e300", "Inf", "9223372036854775808", "--1KB"} {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.String("memory-limit", text, "")
		if got, err := (settings{flags}).size("memory-limit"); err == nil {
			t.Errorf("%q is %d bytes, want an error", text, got)
		}
	}
}

// Clusters from `pathways up` have a lease without an option; `pathways controller` has one only if asked.
func TestUpHasALeaseByDefault(t *testing.T) {
	for _, c := range []struct {
		command *cobra.Command
		said    string
		want    time.Duration
	}{
		{new(program).up(), "", 10 * time.Second}, {new(program).up(), "0", 0}, {new(program).controller(), "", 0},
	} {
		statustest.OK(t, settle(c.command.Flags(), func(name string) (string, bool) {
			return map[string]string{"PATHWAYS_LEASE": c.said}[name], c.said != ""
		}))
		if got := (settings{c.command.Flags()}).time("lease"); got != c.want {
			t.Errorf("%s with PATHWAYS_LEASE=%q: a lease of %v, want %v", c.command.Name(), c.said, got, c.want)
		}
	}
}

func TestHelpNamesEverything(t *testing.T) {
	out := call(t, nil, "--help").out
	for _, name := range []string{"controller", "worker", "up", "down", "status", "token", "certs", "options", "doctor"} {
		if !strings.Contains(out, "\n  "+name) {
			t.Errorf("help does not list %s:\n%s", name, out)
		}
	}
	for _, name := range []string{"ADDRESS", "DEVICES", "WAIT", "CONFIG", "PLUGIN", "TOKEN_FILE"} {
		if !strings.Contains(out, "\n  PATHWAYS_"+name) {
			t.Errorf("help does not list PATHWAYS_%s:\n%s", name, out)
		}
	}
	helps := ""
	for _, name := range []string{"controller", "worker", "up", "down", "status", "events", "address"} {
		helps += call(t, nil, name, "--help").out
	}
	out = call(t, nil, "options").ends(t, ExitSuccess).out
	for _, o := range options {
		flag := "--" + o.name + " "
		if !strings.Contains(out, variable(o.name)+" ") || strings.Contains(out, flag) == slices.Contains(ofScripts, o.name) {
			t.Errorf("the list of options lacks %s, or shows a flag that is none", o.name)
		}
		if taken := strings.Contains(helps, flag); taken == slices.Contains(ofScripts, o.name) {
			t.Errorf("%s is a flag of a command: %v", o.name, taken)
		}
		// The help of a command takes what is quoted for the name of the value.
		if quoted := strings.Split(o.usage, "`"); len(quoted) > 1 && (len(quoted) != 3 || strings.Contains(quoted[1], " ")) {
			t.Errorf("--%s quotes %q, want one word at most", o.name, o.usage)
		}
	}
	if strings.Contains(out, "`") {
		t.Errorf("the list of options has quotes:\n%s", out)
	}
}

// The logs of the newest ten runs are kept, and nothing else of them.
func TestLogsOfTenRunsAreKept(t *testing.T) {
	base := t.TempDir()
	c := place{dir: filepath.Join(base, "mine"), cluster: "mine"}
	other := filepath.Join(base, logsDir, "other", "run")
	statustest.OK(t, os.MkdirAll(other, 0o700))
	begun := time.Now()
	var all []string
	for i := range keptRuns + 3 {
		statustest.OK(t, os.MkdirAll(c.dir, 0o700))
		for _, name := range []string{"controller.log", "worker-0.log", "token", "controller.sock"} {
			statustest.OK(t, os.WriteFile(c.path(name), []byte(name), 0o600))
		}
		logs := statustest.Value(c.keepLogs(begun.Add(time.Duration(i) * time.Second))).OK(t)
		all = append(all, logs)
		left := statustest.Value(os.ReadDir(c.dir)).OK(t)
		statustest.MustEqual(t, len(left), 2, "files that are left, want what is no log")
	}
	for i, logs := range all {
		b, err := os.ReadFile(filepath.Join(logs, "worker-0.log"))
		statustest.Equal(t, err == nil && string(b) == "worker-0.log", i >= 3,
			"run %d of %d: %q, %v, kept", i, len(all), b, err)
	}
	statustest.Checkf(t, statustest.Of(os.Stat(other)), "another cluster's logs")
	if logs, err := (place{dir: filepath.Join(base, "none"), cluster: "none"}).keepLogs(begun); logs != "" || err != nil {
		t.Errorf("without logs: %q, %v", logs, err)
	}
}

func TestVersionIsPrinted(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		statustest.Equal(t, call(t, nil, arg).ends(t, ExitSuccess).out, "1.2.3\n", "the output of %s", arg)
	}
}

func TestCertsMakesCertificatesOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	call(t, nil, "certs", dir, "--host", "node1").ends(t, ExitSuccess)
	call(t, nil, "certs", dir).ends(t, ExitFailed, "ALREADY_EXISTS") // a second set in one directory
	info := statustest.Value(os.Stat(filepath.Join(dir, "key.pem"))).OK(t)
	statustest.Equal(t, info.Mode().Perm(), 0o600, "the mode of the key's file")
	statustest.Check(t, statustest.Of(tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))))
	dir = filepath.Join(t.TempDir(), "roles")
	call(t, nil, "certs", dir, "--roles", "--tenant", "research").ends(t, ExitSuccess, "tenant.pem")
	for name, says := range map[string]string{"a/b": "is not a name for a tenant",
		"cert": "two certificates would be named cert.pem"} {
		call(t, nil, "certs", filepath.Join(t.TempDir(), "x"), "--tenant", name).ends(t, ExitUsage, says)
	}
	for role, name := range map[string]string{"operator": "", "worker": "worker", "tenant": "tenant",
		"tenant/research": "research"} {
		cert, key := name+".pem", name+"-key.pem"
		if name == "" {
			cert, key = "cert.pem", "key.pem"
		}
		pair := statustest.Value(tls.LoadX509KeyPair(filepath.Join(dir, cert), filepath.Join(dir, key))).OK(t)
		if uris := pair.Leaf.URIs; len(uris) != 1 || uris[0].String() != "pathways://"+role {
			t.Errorf("%s is for %v", cert, uris)
		}
		info := statustest.Value(os.Stat(filepath.Join(dir, key))).OK(t)
		statustest.Equal(t, info.Mode().Perm(), 0o600, "the mode of %s", key)
	}
}

// waitFor asks until the answer is yes. The bound is there for a hang alone.
func waitFor(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !yes(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// A whole cluster of processes: up, status, a worker that is killed, one that is
// frozen, down.
func TestUpAndDown(t *testing.T) {
	t.Setenv(asCommand, "1") // for what up starts
	dir := shortDir(t)
	place := []string{"--dir", dir}
	run := func(args ...string) outcome { return call(t, nil, append(args, place...)...) }
	defer run("down") // where the test fails
	free := statustest.Value(net.Listen("tcp", "127.0.0.1:0")).OK(t)
	page := free.Addr().String()
	statustest.OK(t, free.Close())
	// A worker that was frozen waits as long as the lease for a controller, which down has ended.
	run("up", "--workers", "3", "--devices", "2", "--heartbeat", "100ms", "--silence", "4s", "--lease", "1s",
		"--no-restart", "--http", page).ends(t, ExitSuccess, "6 devices in 3 workers", "shown at http://"+page,
		"PATHWAYS_ADDRESS=unix:"+dir)
	all := statustest.Value(at(dir).running()).OK(t)
	statustest.MustEqual(t, len(all), 4, "processes that run")
	run("up").ends(t, ExitFailed, "is already up")
	workers := func() (pids []int) {
		out := run("status", "--json").ends(t, ExitSuccess).out
		var report struct {
			Islands []struct {
				Workers []struct {
					PID int `json:"pid"`
				} `json:"workers"`
			} `json:"islands"`
		}
		statustest.OK(t, json.Unmarshal([]byte(out), &report))
		for _, i := range report.Islands {
			for _, w := range i.Workers {
				pids = append(pids, w.PID)
			}
		}
		slices.Sort(pids)
		return pids
	}
	fitsSchema(t, run("status", "--json").out)
	var want []int
	for _, p := range all[1:] {
		want = append(want, p.PID)
	}
	slices.Sort(want)
	statustest.Equal(t, fmt.Sprint(workers()), fmt.Sprint(want), "the processes of the status' workers")
	run("status").ends(t, ExitSuccess, "worker-1", "no sessions")
	run("events").ends(t, ExitSuccess, " joined   worker-1 came to island \"default\"\n")
	last := run("events", "--json", "--last", "1").ends(t, ExitSuccess)
	var event struct {
		Number uint64
		Kind   string
		Time   time.Time
	}
	if err := json.Unmarshal([]byte(last.out), &event); err != nil || event.Kind != "joined" || event.Number < 3 ||
		time.Since(event.Time).Abs() > time.Hour {
		t.Errorf("the last event: %v\n%s", err, last.out)
	}
	call(t, map[string]string{"PATHWAYS_TOKEN": "another"}, append([]string{"status"}, place...)...).
		ends(t, ExitFailed, "UNAUTHENTICATED")
	for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		all[i+1].signal(signal)
		waitFor(t, "a worker's loss to be seen", func() bool { return len(workers()) == 2-i })
	}
	logs := filepath.Join(dir, logsDir, "default")
	run("down").ends(t, ExitSuccess, "has ended. Its logs are in "+logs)
	if kept, err := filepath.Glob(filepath.Join(logs, "*", "*.log")); err != nil || len(kept) < 4 {
		t.Errorf("down keeps the logs %v, want those of 4 processes: %v", kept, err)
	}
	for _, p := range all {
		if p.isAlive() {
			t.Errorf("%s is still there", p.Name)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "[^.]*", "*")); err != nil || len(left) > 0 {
		t.Errorf("down leaves %v %v", left, err)
	}
	run("down").ends(t, ExitFailed, "NOT_FOUND")
}

func at(dir string) place { return place{dir: filepath.Join(dir, "default"), cluster: "default"} }

// A command in a cluster has its address and its exit code; the cluster ends with
// it.
func TestUpRunsACommand(t *testing.T) {
	t.Setenv(asCommand, "1")
	dir := shortDir(t)
	file := filepath.Join(dir, "address")
	t.Setenv("PATHWAYS_TOKEN", "that of another cluster, which the command may use as well")
	call(t, nil, "up", "--workers", "1", "--dir", dir, "--", "/bin/sh", "-c",
		"echo $PATHWAYS_ADDRESS$PATHWAYS_TOKEN$PATHWAYS_TOKEN_FILE >"+file+"; exit 7").
		ends(t, 7)
	if b, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(b)) != at(dir).address() {
		t.Errorf("the command saw %q, %v", b, err)
	}
	if all, err := at(dir).running(); err != nil || len(all) > 0 {
		t.Errorf("the cluster runs on: %v, %v", all, err)
	}
	call(t, nil, "up", "--workers", "1", "--dir", dir, "--", "/no/such/program").
		ends(t, ExitFailed, "cannot run /no/such/program")
	if _, err := os.Stat(at(dir).dir); !os.IsNotExist(err) {
		t.Errorf("the cluster's directory is left: %v", err)
	}
}

// A cluster that was started for a command ends with the process that runs it, however that ends.
func TestClusterOfACommandEndsWithUp(t *testing.T) {
	dir := shortDir(t)
	up := exec.Command(os.Args[0], "up", "--workers", "1", "--dir", dir, "--", "/bin/sh", "-c", "echo $$; exec sleep 1000")
	up.Env = append(os.Environ(), asCommand+"=1")
	out := statustest.Value(up.StdoutPipe()).OK(t)
	statustest.OK(t, up.Start())
	defer func() { _ = up.Wait() }()
	defer func() { _ = up.Process.Kill() }()
	var pid int
	_ = statustest.Value(fmt.Fscan(out, &pid)).OK(t)
	all := append(statustest.Value(at(dir).running()).OK(t), process{Name: "sleep", PID: pid, Start: started(pid)})
	statustest.MustEqual(t, len(all), 4, "processes with that of the command")
	statustest.OK(t, up.Process.Kill())
	for _, q := range all {
		waitFor(t, q.Name+" to end", func() bool { return !q.isAlive() })
	}
	t.Setenv(asCommand, "1")
	call(t, nil, "up", "--workers", "1", "--dir", dir, "--", "/bin/true").
		ends(t, ExitSuccess, "all processes of the cluster default have ended")
}

// If up is stopped before all workers are ready, it takes the cluster down and says so.
func TestUpIsStopped(t *testing.T) {
	t.Setenv(asCommand, "1")
	dir := shortDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := Main(ctx, []string{"up", "--workers", "2", "--dir", dir}, environment(&out, &errs, nil))
	if code != ExitStopped || !strings.Contains(errs.String(), "stopped with 0 of 2 workers ready") {
		t.Errorf("exit code %d, want %d\n%s", code, ExitStopped, errs.String())
	}
	if _, err := os.Stat(at(dir).dir); !os.IsNotExist(err) {
		t.Errorf("the cluster's directory is left: %v", err)
	}
	// A worker that still looks for its controller ends well.
	errs.Reset()
	code = Main(ctx, []string{"worker", "--address", "unix:" + filepath.Join(dir, "nobody"), "--dir", dir},
		environment(&out, &errs, nil))
	if code != ExitSuccess || errs.Len() > 0 {
		t.Errorf("a worker that waits: exit code %d, want %d\n%s", code, ExitSuccess, errs.String())
	}
}

// Ask ends with its context, whether or not it has got an answer.
func TestAskEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := cluster.Ask(ctx, "unix:"+filepath.Join(t.TempDir(), "s"), cluster.Secret{}, nil); err == nil {
		t.Error("an answer came from nowhere")
	}
}

func TestControllerWarnsOfStateWithoutLease(t *testing.T) {
	for args, warns := range map[string]bool{"--state x": true, "--state x --lease 30s": false,
		"--state x --lease 0": false, "--heartbeat 1s": false} {
		all := append([]string{"controller", "--dir", t.TempDir(), "--order", "neither"}, strings.Fields(args)...)
		errs := call(t, nil, all...).errs
		statustest.Equal(t, strings.Contains(errs, "no effect without --lease"), warns, "%s: it warns, with\n%s", args, errs)
	}
}
