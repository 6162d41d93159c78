package pjrt

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/epoch"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
)

// build makes the plugin of testdata/plugin.c at path.
func build(t testing.TB, path string, defines ...string) string {
	t.Helper()
	statustest.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	args := []string{"-shared", "-fPIC", "-Iabi", "-o", path, "testdata/plugin.c"}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", cc, args, err, out)
	}
	return path
}

// refused asserts an error's code, and the texts in its message.
func refused(t testing.TB, err error, code status.Code, texts ...string) {
	t.Helper()
	statustest.Fails(t, "the error", err, code, texts...)
}

func TestOpenBadPlugin(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	good := statustest.Value(os.ReadFile(build(t, file("good.so")))).OK(t)
	write := func(name string, b []byte) string {
		t.Helper()
		statustest.OK(t, os.WriteFile(file(name), b, 0o755))
		return file(name)
	}
	// The machine stands at byte 18 of an ELF header.
	foreign := bytes.Clone(good)
	other := elf.EM_AARCH64
	if runtime.GOARCH == "arm64" {
		other = elf.EM_X86_64
	}
	binary.NativeEndian.PutUint16(foreign[18:], uint16(other))
	const failed = status.FailedPrecondition
	for _, c := range []struct {
		name, path string
		code       status.Code
		texts      []string
	}{
		{"missing", file("nowhere.so"), status.NotFound, []string{"nowhere.so"}},
		{"a directory", dir, failed, []string{"directory"}},
		{"empty", write("empty.so", nil), failed, []string{"ELF"}},
		{"text", write("text.so", []byte("#!/bin/sh\necho I am no library\n")), failed, []string{"ELF"}},
		{"cut short", write("short.so", good[:len(good)/2]), failed, []string{"short.so"}},
		{"a header only", write("header.so", good[:64]), failed, []string{"header.so"}},
		{"another machine", write("foreign.so", foreign), failed, []string{other.String(), "this machine"}},
		{"no GetPjrtApi", build(t, file("symbol.so"), "NO_SYMBOL"), failed, []string{"GetPjrtApi"}},
		{"no table", build(t, file("null.so"), "NULL_TABLE"), failed, []string{"GetPjrtApi", "no table"}},
		{"no version", build(t, file("version.so"), "SHORT_TABLE"), failed, []string{"too short"}},
		{"another major version", build(t, file("major.so"), "MAJOR=1", "MINOR=3"), failed,
			[]string{"speaks PJRT 1.3", "this build speaks 0.x (0.114)"}},
		{"does not start", build(t, file("start.so"), "BAD_START"), status.Unavailable,
			[]string{"start.so", "the chips sleep"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // a second try says the same
				p, err := Open(c.path)
				if p != nil {
					t.Errorf("Open gave a plugin")
				}
				refused(t, err, c.code, c.texts...)
			}
		})
	}
	t.Run("mended", func(t *testing.T) {
		path := write("mended.so", good[:len(good)/2])
		if _, err := Open(path); err == nil {
			t.Fatal("Open of half a file gave no error")
		}
		write("mended.so", good)
		statustest.Checkf(t, statustest.Of(Open(path)), "Open of the mended file")
	})
	t.Run("a program that links this package", func(t *testing.T) {
		self, err := os.Executable()
		statustest.OK(t, err)
		_, err = Open(self)
		refused(t, err, failed, "Open Pathways itself")
	})
}

func TestPluginIsOpenedOnce(t *testing.T) {
	dir := t.TempDir()
	path := build(t, filepath.Join(dir, "plugin.so"), "STABLEHLO=1,2,3")
	link := filepath.Join(dir, "link.so")
	statustest.OK(t, os.Symlink(path, link))
	var all [8]*Plugin
	var work sync.WaitGroup
	for i := range all {
		work.Go(func() {
			p, err := Open([]string{path, link}[i%2])
			statustest.Check(t, err)
			all[i] = p
		})
	}
	work.Wait()
	for _, p := range all {
		if p != all[0] {
			t.Fatalf("one file gave two plugins")
		}
	}
	p := all[0]
	if major, minor := p.Version(); major != 0 || minor != 114 {
		t.Errorf("Version is %d.%d", major, minor)
	}
	want := map[string]any{"greeting": "hello", "answer": int64(42), "half": float32(0.5), "true": true}
	for name, v := range want {
		if got := p.Attributes()[name]; got != v {
			t.Errorf("attribute %s is %v (%T), want %v", name, got, got, v)
		}
	}
	if v, _ := p.Attributes()["stablehlo_current_version"].([]int64); dotted(v) != "1.2.3" {
		t.Errorf("stablehlo_current_version is %v", v)
	}
	if p.API() == nil || p.Path() != path {
		t.Errorf("API %v, Path %s", p.API(), p.Path())
	}
}

func TestPluginKindComesFromItsExtensions(t *testing.T) {
	dir := t.TempDir()
	for kind, define := range map[string]string{
		"cpu": "EXTENSION=5", "cuda": "EXTENSION=0", "tpu": "EXTENSION=16",
	} {
		p := statustest.Value(Open(build(t, filepath.Join(dir, kind+".so"), define))).OK(t)
		statustest.Equal(t, p.Kind(), kind, "a plugin with %s is of kind", define)
	}
}

func TestMissingFunctionIsUnimplemented(t *testing.T) {
	p, err := Open(build(t, filepath.Join(t.TempDir(), "old.so"), "NO_CLIENT"))
	statustest.OK(t, err)
	_, err = p.Create(ClientOptions{})
	refused(t, err, status.Unimplemented, "PJRT_Client_Create", "old.so", "0.114")
}

// TestPluginIsGivenItsOptions checks what a plugin is given, by one that tells.
func TestPluginIsGivenItsOptions(t *testing.T) {
	dir := t.TempDir()
	open := func(kind, define string) *Plugin {
		p := statustest.Value(Open(build(t, filepath.Join(dir, kind+".so"), define))).OK(t)
		return p
	}
	cpu, cuda, tpu := open("cpu", "EXTENSION=5"), open("cuda", "EXTENSION=0"), open("tpu", "EXTENSION=16")
	for _, c := range []struct {
		name   string
		plugin *Plugin
		o      ClientOptions
		code   status.Code
		text   string
	}{
		{"every type", cpu, ClientOptions{Values: map[string]any{"a": "x y", "b": 7, "c": int64(-8), "d": int32(9),
			"e": []int64{1, 2}, "f": 1.5, "g": float32(2.5), "h": true, "i": "", "j": []int64{}}},
			status.Aborted, "a='x y'; b=7; c=-8; d=9; e=[1][2]; f=1.5; g=2.5; h=true; i=''; j=; "},
		{"CPU devices", cpu, ClientOptions{Devices: 3}, status.Aborted, "cpu_device_count=3; "},
		{"GPU devices", cuda, ClientOptions{Devices: 2}, status.Aborted, "visible_devices=[0][1]; "},
		{"TPU devices", tpu, ClientOptions{Devices: 2}, status.InvalidArgument, "tpu devices cannot be chosen"},
		{"CPU devices in a string", cpu, ClientOptions{Values: map[string]any{"cpu_device_count": "5"}}, status.Aborted,
			"cpu_device_count=5; "},
		{"fewer than none", cpu, ClientOptions{Devices: -1}, status.InvalidArgument, "-1 devices"},
		{"a type that no plugin takes", cpu, ClientOptions{Values: map[string]any{"z": struct{}{}}}, status.InvalidArgument,
			"option z"},
	} {
		_, err := c.plugin.Create(c.o)
		t.Run(c.name, func(t *testing.T) { refused(t, err, c.code, c.text) })
	}
}

func TestCreateBadOptions(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c, err := p.Create(ClientOptions{Values: map[string]any{"no_such_option": 1}})
		if err != nil {
			refused(t, err, status.InvalidArgument, "no_such_option")
		} else if err := c.Close(); err != nil { // older plugins ignore what they do not know
			t.Error(err)
		}
		for _, n := range []any{"four", "", 0, -1, 1 << 40, 1.5, []int64{1}} {
			_, err = p.Create(ClientOptions{Values: map[string]any{"cpu_device_count": n}})
			refused(t, err, status.InvalidArgument, "cpu_device_count")
		}
		c = client(t, p, 3)
		statustest.Equal(t, len(c.Devices()), 3, "devices")
		if c.Platform() != "cpu" || c.Raw() == nil {
			t.Errorf("platform %q, raw %v", c.Platform(), c.Raw())
		}
	})
}

// keys is a rendezvous store in memory.
type keys struct {
	mu     sync.Mutex
	values map[string][]byte
}

func (k *keys) Put(_ context.Context, key string, value []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.values[key] = value
	return nil
}

func (k *keys) Get(ctx context.Context, key string) ([]byte, error) {
	k.mu.Lock()
	v, ok := k.values[key]
	k.mu.Unlock()
	if ok {
		return v, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// looks is keys that can be looked at without waiting.
type looks struct{ *keys }

func (k looks) TryGet(_ context.Context, key string) ([]byte, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.values[key]
	return v, ok, nil
}

type broken struct{}

func (broken) Put(context.Context, string, []byte) error {
	return status.New(status.PermissionDenied, "not your island")
}
func (broken) Get(context.Context, string) ([]byte, error) { panic("the store is gone") }

// TestPluginReachesTheStoreOfItsIsland checks that a plugin reaches the rendezvous store of its island.
func TestPluginReachesTheStoreOfItsIsland(t *testing.T) {
	p, err := Open(build(t, filepath.Join(t.TempDir(), "plugin.so"), "EXTENSION=0"))
	statustest.OK(t, err)
	const dead, missing = "4 no value for key \"never\" after 20ms", "5 no value for key \"never\""
	for name, wrap := range map[string]func(*keys) device.KeyValues{
		"Get only": func(k *keys) device.KeyValues { return k },
		"TryGet":   func(k *keys) device.KeyValues { return looks{k} },
	} {
		t.Run(name, func(t *testing.T) {
			k := &keys{values: map[string][]byte{"to plugin": []byte("good morning")}}
			_, err := NewKind(p, ClientOptions{}).Join(t.Context(), device.Membership{Node: 1, Nodes: 2, Store: wrap(k)})
			refused(t, err, status.Aborted, "node_id=1; num_nodes=2; ", "put: ok; get: good morning; try: good morning; ",
				"get: "+dead, "try: "+missing)
			statustest.Equal(t, string(k.values["from plugin"]), "a\x00b", "the plugin put")
		})
	}
	t.Run("a store that fails", func(t *testing.T) {
		_, err := NewKind(p, ClientOptions{}).Join(t.Context(), device.Membership{Nodes: 2, Store: broken{}})
		refused(t, err, status.Aborted, "put: 7 not your island", "get: 13 the rendezvous store panicked: the store is gone")
	})
	t.Run("that of an epoch", func(t *testing.T) {
		epochs := epoch.NewServer(epoch.Limits{}, nil)
		defer epochs.Close()
		network := inproc.NewNetwork(transport.Credentials{})
		l, err := network.Listen("controller")
		statustest.OK(t, err)
		defer l.Close()
		var pending [2]*epoch.Pending
		for i := range pending {
			let := make(chan struct{})
			go func() {
				defer close(let)
				if in, err := l.Accept(); err == nil {
					epochs.Take(in)
				}
			}()
			if pending[i], err = epoch.Dial(t.Context(),
				epoch.Config{Dialer: network, Address: l.Address(), Name: strconv.Itoa(i), Nodes: 2}); err != nil {
				t.Fatal(err)
			}
			<-let
		}
		var members [2]*epoch.Member
		for i := range members {
			if members[i], err = pending[i].Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer members[i].Close()
		}
		statustest.OK(t, members[0].Put(t.Context(), "to plugin", []byte("good morning")))
		_, err = NewKind(p, ClientOptions{}).Join(t.Context(), members[1].Membership())
		refused(t, err, status.Aborted, "node_id=1; num_nodes=2; ", "put: ok; get: good morning; try: good morning; ",
			"get: "+dead, "try: "+missing)
		if got, err := members[0].Get(t.Context(), "from plugin"); err != nil || string(got) != "a\x00b" {
			t.Errorf("the plugin put %q, %v", got, err)
		}
		// A plugin that is still at it when another member goes is told so.
		members[0].Close()
		<-members[1].Done()
		_, err = NewKind(p, ClientOptions{}).Join(t.Context(), members[1].Membership())
		refused(t, err, status.Aborted, "put: 10 ", "worker 0 is gone")
	})
	k := NewKind(p, ClientOptions{})
	_, err = k.Join(t.Context(), device.Membership{Nodes: 2})
	refused(t, err, status.InvalidArgument, "rendezvous store")
	_, err = k.Join(t.Context(), device.Membership{Node: 2, Nodes: 2, Store: &keys{}})
	refused(t, err, status.InvalidArgument, "member 2 of 2")
}

func TestKindJoinsAloneOrNotAtAll(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		for _, c := range []struct{ devices, want int }{{0, 1}, {3, 3}} {
			k := NewKind(p, ClientOptions{Devices: c.devices})
			d, err := k.Join(t.Context(), device.Membership{})
			statustest.OKf(t, err, "Join")
			statustest.Equal(t, len(d.Devices()), c.want, "devices that Join returned")
			statustest.Checkf(t, d.Close(), "Close")
		}
		k := NewKind(p, ClientOptions{})
		_, err := k.Join(t.Context(), device.Membership{Node: 0, Nodes: 2, Store: &keys{}})
		refused(t, err, status.Unimplemented, "no interconnect of its own")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = k.Join(ended, device.Membership{})
		refused(t, err, status.Cancelled)
	})
}
