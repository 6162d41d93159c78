package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/capi/drivers"
	"github.com/openpathways/pathways/core/command"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

// The test's binary is the command line and the example, too, by the name that it is
// called by.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); name {
	case "pathways":
		os.Exit(command.Main(context.Background(), os.Args[1:], command.Env{
			Self: []string{os.Args[0]}, Version: "test", Out: os.Stdout, Err: os.Stderr,
			Kinds: func(name string, count, _ int) (device.Kind, error) {
				return drivers.Kind(drivers.Want{Name: name, Count: count, Dirs: python(), OwnProcess: true})
			},
		}))
	case "example":
		main()
		os.Exit(0)
	case "sharing", "large":
		client := map[string]func(context.Context) error{"sharing": sharing, "large": large}[name]
		if err := client(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// python is where python3 has its packages: they may have a plugin.
func python() []string {
	out, err := exec.Command("python3", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").Output()
	if err != nil {
		return nil
	}
	return []string{filepath.Clean(strings.TrimSpace(string(out)))}
}

// The example runs on clusters of one worker and of several processes, and leaves
// nothing.
func TestExampleLeavesNothing(t *testing.T) {
	self := statustest.Value(os.Executable()).OK(t)
	folder := t.TempDir()
	for _, name := range []string{"pathways", "example", "sharing", "large"} {
		statustest.OK(t, os.Symlink(self, filepath.Join(folder, name)))
	}
	run := func(t *testing.T, workers, devices, name, want string) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		up := exec.CommandContext(ctx, filepath.Join(folder, "pathways"), "up", "--dir", filepath.Join(folder, name+workers),
			"--workers", workers, "--devices", devices, "--", filepath.Join(folder, name))
		var said bytes.Buffer
		up.Stderr = &said
		got, err := up.Output()
		if err != nil || string(got) != want {
			t.Errorf("%v: %q, expected %q\n%s", err, got, want, &said)
		}
	}
	const want = "1000 rows on 4 devices: total 124792, and 124792 by hand\n"
	for _, shape := range [][2]string{{"1", "4"}, {"2", "2"}, {"4", "1"}} {
		t.Run(shape[0]+" workers", func(t *testing.T) { run(t, shape[0], shape[1], "example", want) })
	}
	t.Run("shared memory", func(t *testing.T) {
		run(t, "2", "2", "sharing", "the device saw 1000000, the same memory is true, the result: "+
			"the array is in memory of the workers, because their devices made it or it was copied there; call Shard "+
			"for a copy\n")
	})
	t.Run("more than 2 GiB", func(t *testing.T) {
		if os.Getenv("PATHWAYS_TEST_LARGE") == "" {
			t.Skip("it takes 5 GB of memory: PATHWAYS_TEST_LARGE=1")
		}
		run(t, "1", "2", "large", "2147549184 elements\n")
	})
	alone := exec.Command(filepath.Join(folder, "example"))
	alone.Env = append(os.Environ(), "PATHWAYS_ADDRESS=")
	if out, err := alone.CombinedOutput(); err == nil || !strings.Contains(string(out), "set PATHWAYS_ADDRESS") {
		t.Errorf("without a cluster: %v, %s", err, out)
	}
}
