package pjrt

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// touch makes files below root, each holding its own path.
func touch(t testing.TB, root string, files ...string) {
	t.Helper()
	for _, f := range files {
		path := filepath.Join(root, f)
		statustest.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		statustest.OK(t, os.WriteFile(path, []byte(f), 0o644))
	}
}

const (
	fastatomstruct = "fastatomstruct_xla_cpu/libpjrt_cpu.so"
	lammps         = "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"
	cuda12         = "jax_plugins/xla_cuda12/xla_cuda_plugin.so"
	cuda13         = "jax_plugins/xla_cuda13/xla_cuda_plugin.so"
	libtpu         = "libtpu/libtpu.so"
)

func env(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

func TestPluginIsChosenByHardwareAndPackages(t *testing.T) {
	const gpu, tpu, vfio = "dev/nvidia0", "dev/accel0", "dev/vfio/0"
	for _, c := range []struct {
		name     string
		files    []string // below the directory of packages
		hardware []string // below the root
		env      map[string]string
		platform string
		want     string // the package's file
		kind     string
		why      string
	}{
		{"CPU", []string{fastatomstruct}, nil, nil, "", fastatomstruct, "cpu", "CPU"},
		{"packages without hardware", []string{cuda12, libtpu, fastatomstruct}, nil, nil, "", fastatomstruct, "cpu", "CPU"},
		{"hardware without packages", []string{fastatomstruct}, []string{gpu, tpu}, nil, "", fastatomstruct, "cpu", "CPU"},
		{"CUDA", []string{cuda12, fastatomstruct}, []string{gpu}, nil, "", cuda12, "cuda", "1 NVIDIA"},
		{"CUDA 13 before 12", []string{cuda12, cuda13}, []string{gpu}, nil, "", cuda13, "cuda", "NVIDIA"},
		{"CUDA before TPU", []string{cuda12, libtpu}, []string{gpu, tpu}, nil, "", cuda12, "cuda", "NVIDIA"},
		{"hidden CUDA", []string{cuda12, fastatomstruct}, []string{gpu}, map[string]string{"CUDA_VISIBLE_DEVICES": "-1"}, "",
			fastatomstruct, "cpu", "CPU"},
		{"only the control node", []string{cuda12, fastatomstruct}, []string{"dev/nvidiactl"}, nil, "", fastatomstruct, "cpu",
			"CPU"},
		{"TPU", []string{libtpu, fastatomstruct}, []string{tpu}, nil, "", libtpu, "tpu", "1 TPU"},
		{"a platform", []string{cuda12, fastatomstruct}, []string{gpu}, nil, "cpu", fastatomstruct, "cpu", "CPU"},
		{"VFIO of someone else", []string{libtpu, fastatomstruct}, []string{vfio}, nil, "", fastatomstruct, "cpu", "CPU"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, root := t.TempDir(), t.TempDir()
			touch(t, dir, c.files...)
			touch(t, root, c.hardware...)
			f, err := Find(FindOptions{Dirs: []string{dir}, Root: root, Getenv: env(c.env), Platform: c.platform,
				CacheDir: root})
			statustest.OK(t, err)
			if f.Path != filepath.Join(dir, c.want) || f.Kind != c.kind {
				t.Errorf("found %s, kind %s", f.Path, f.Kind)
			}
			if !strings.Contains(f.Why, c.why) {
				t.Errorf("why: %q, want %q in it", f.Why, c.why)
			}
			chosen := 0
			for _, c := range f.Candidates {
				if c.Chosen {
					chosen++
				}
				if c.Note == "" {
					t.Errorf("candidate %+v has no note", c)
				}
			}
			if chosen != 1 || !f.Candidates[0].Chosen {
				t.Errorf("candidates: %+v", f.Candidates)
			}
		})
	}
	t.Run("a TPU by VFIO", func(t *testing.T) {
		dir, root := t.TempDir(), t.TempDir()
		touch(t, dir, libtpu, fastatomstruct)
		touch(t, root, vfio, "sys/bus/pci/devices/0000:00:04.0/vendor")
		statustest.OK(t, os.WriteFile(filepath.Join(root, "sys/bus/pci/devices/0000:00:04.0/vendor"), []byte("0x1ae0\n"),
			0o644))
		f := statustest.Value(Find(FindOptions{Dirs: []string{dir}, Root: root, Getenv: env(nil)})).OK(t)
		statustest.Equal(t, f.Kind, "tpu", "what is found")
	})
}

func TestGPUsAreCounted(t *testing.T) {
	root := t.TempDir()
	touch(t, root, "dev/nvidia0", "dev/nvidia1", "dev/nvidia2", "dev/nvidiactl")
	for visible, want := range map[string]int{"": 3, "0,2": 2, "-1": 0, "0,1,2,3": 3} {
		o := FindOptions{Root: root, Getenv: env(map[string]string{"CUDA_VISIBLE_DEVICES": visible})}
		statustest.Equal(t, o.GPUs(), want, "GPUs with CUDA_VISIBLE_DEVICES=%s", visible)
	}
}

func TestNamedPluginIsFound(t *testing.T) {
	dir := t.TempDir()
	touch(t, dir, "mine.so", "my_cuda_plugin.so", fastatomstruct)
	for file, kind := range map[string]string{"mine.so": "cpu", "my_cuda_plugin.so": "cuda"} {
		path := filepath.Join(dir, file)
		f, err := Find(FindOptions{Dirs: []string{dir}, Getenv: env(map[string]string{"PATHWAYS_PLUGIN": path})})
		if err != nil || f.Path != path || f.Kind != kind || !strings.Contains(f.Why, "PATHWAYS_PLUGIN") {
			t.Errorf("found %+v, %v", f, err)
		}
	}
	missing := filepath.Join(dir, "nowhere.so")
	_, err := Find(FindOptions{Dirs: []string{dir}, Getenv: env(map[string]string{"PATHWAYS_PLUGIN": missing})})
	refused(t, err, status.NotFound, "PATHWAYS_PLUGIN", missing)
}

// Files that say the same of themselves are told apart by their bytes.
func TestPluginsAreToldApartByContents(t *testing.T) {
	dir, cacheDir := t.TempDir(), t.TempDir()
	path := build(t, filepath.Join(dir, fastatomstruct), "STABLEHLO=1,9,9")
	of := func() string {
		return contents(path, FindOptions{CacheDir: cacheDir}.openCache())
	}
	first := of()
	sum, err := sum(path)
	if err != nil || first != "libpjrt_cpu.so with SHA-256 "+sum {
		t.Fatalf("%q, want the name and %s, %v", first, sum, err)
	}
	// It is remembered, without harm to what else is.
	file := filepath.Join(cacheDir, "plugins.json")
	b := statustest.Value(os.ReadFile(file)).OK(t)
	statustest.OK(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(b), sum, "remembered")), 0o644))
	statustest.Equal(t, of(), "libpjrt_cpu.so with SHA-256 remembered", "the cache was not used")
	if v, err := (FindOptions{CacheDir: cacheDir}).openCache().stablehlo(path); err != nil || dotted(v) != "1.9.9" {
		t.Errorf("the cache holds StableHLO %v, %v", v, err)
	}
	// More bytes behind what is loaded.
	f := statustest.Value(os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)).OK(t)
	statustest.OK(t, statustest.Of(f.WriteString("another build")))
	statustest.OK(t, f.Close())
	if got := of(); got == first || strings.Contains(got, "remembered") {
		t.Errorf("a file that changed is still %q", got)
	}
	statustest.Equal(t, contents(filepath.Join(dir, "nowhere.so"), FindOptions{CacheDir: cacheDir}.openCache()), "",
		"a plugin without a file")
}

func TestPluginIsFoundInTheFirstDirThatHasOne(t *testing.T) {
	first, second, third := t.TempDir(), t.TempDir(), t.TempDir()
	touch(t, third, fastatomstruct)
	o := FindOptions{Dirs: []string{first}, Root: first,
		Getenv: env(map[string]string{"PATHWAYS_PLUGIN_DIRS": second + ":" + third})}
	statustest.Equal(t, statustest.Value(Find(o)).OK(t).Path, filepath.Join(third, fastatomstruct), "what is found")
	o.Getenv = env(map[string]string{"PATHWAYS_PLUGIN_DIRS": second})
	_, err := Find(o)
	refused(t, err, status.NotFound, first, second, fastatomstruct, "pip install fastatomstruct-xla-cpu",
		"PATHWAYS_PLUGIN")
	_, err = Find(FindOptions{Root: first, Getenv: env(nil)})
	refused(t, err, status.NotFound, "PATHWAYS_PLUGIN_DIRS is not set", "pip install fastatomstruct-xla-cpu")
	_, err = Find(FindOptions{Dirs: []string{third}, Root: first, Getenv: env(nil), Platform: "cuda"})
	refused(t, err, status.NotFound, cuda12, "no NVIDIA GPU", `pip install "jax[cuda13]"`)
	touch(t, first, "dev/nvidia0")
	_, err = Find(FindOptions{Dirs: []string{second}, Root: first, Getenv: env(nil)})
	refused(t, err, status.NotFound, "1 NVIDIA", `pip install "jax[cuda13]"`, fastatomstruct)
}

func TestFindNewestStableHLO(t *testing.T) {
	dir, cacheDir := t.TempDir(), filepath.Join(t.TempDir(), "cache")
	older := build(t, filepath.Join(dir, fastatomstruct), "STABLEHLO=1,9,9")
	newer := build(t, filepath.Join(dir, lammps), "STABLEHLO=1,10,0")
	find := func() Found {
		t.Helper()
		f, err := Find(FindOptions{Dirs: []string{dir}, Root: cacheDir, Getenv: env(nil), CacheDir: cacheDir})
		statustest.OK(t, err)
		return f
	}
	f := find()
	if f.Path != newer || !strings.Contains(f.Why, "1.10.0") {
		t.Fatalf("found %+v", f)
	}
	if !strings.Contains(f.Candidates[len(f.Candidates)-1].Note, "1.9.9") {
		t.Errorf("candidates: %+v", f.Candidates)
	}
	// The answer is remembered: what the cache says is taken for the plugin's word.
	file := filepath.Join(cacheDir, "plugins.json")
	b := statustest.Value(os.ReadFile(file)).OK(t)
	var c cache
	if err := json.Unmarshal(b, &c); err != nil || len(c.Plugins) != 2 {
		t.Fatalf("the cache holds %s, %v", b, err)
	}
	entry := c.Plugins[older]
	entry.StableHLO = []int64{2, 0, 0}
	c.Plugins[older] = entry
	b = statustest.Value(json.Marshal(&c)).OK(t)
	statustest.OK(t, os.WriteFile(file, b, 0o644))
	statustest.Equal(t, find().Path, older, "the cache was not used")
	// A plugin that changed is asked again.
	statustest.OK(t, os.Chtimes(older, time.Now(), time.Now().Add(time.Hour)))
	statustest.Equal(t, find().Path, newer, "the cache was used for a plugin that changed")
	// A cache that cannot be read or written is no obstacle.
	statustest.OK(t, os.WriteFile(file, []byte("{"), 0o644))
	statustest.Equal(t, find().Path, newer, "with a broken cache")
	blocked := filepath.Join(dir, "file")
	touch(t, dir, "file")
	f = statustest.Value(Find(FindOptions{
		Dirs: []string{dir}, Root: cacheDir, Getenv: env(nil), CacheDir: filepath.Join(blocked, "cache")})).OK(t)
	statustest.Equal(t, f.Path, newer, "with no cache")
	// A plugin that does not load is passed over, and a file linked twice is one.
	dir = t.TempDir()
	older, newer = build(t, filepath.Join(dir, fastatomstruct), "STABLEHLO=1,9,9"), filepath.Join(dir, lammps)
	touch(t, dir, lammps)
	f = find()
	if f.Path != older || !strings.Contains(f.Candidates[len(f.Candidates)-1].Note, "ELF") {
		t.Errorf("with a broken plugin: %+v", f)
	}
	statustest.OK(t, os.Remove(newer))
	statustest.OK(t, os.Symlink(older, newer))
	if f = find(); len(f.Candidates) != 3 || f.Path != older { // with the notes on CUDA and TPU
		t.Errorf("with one file linked twice: %+v", f)
	}
}

// TestFindReturnsInstalledPlugins finds the real plugins.
func TestFindReturnsInstalledPlugins(t *testing.T) {
	all := plugins(t)
	f, err := Find(FindOptions{Dirs: pluginDirs(), Platform: "cpu", CacheDir: t.TempDir(), Root: t.TempDir()})
	statustest.OK(t, err)
	p := statustest.Value(Open(f.Path)).OK(t)
	best, _ := p.Attributes()["stablehlo_current_version"].([]int64)
	for _, other := range all {
		v, _ := other.Attributes()["stablehlo_current_version"].([]int64)
		if dotted(v) != dotted(best) && len(all) > 1 && compareVersions(v, best) > 0 {
			t.Errorf("Find chose StableHLO %s, %s has %s", dotted(best), other.Path(), dotted(v))
		}
	}
	if p.Kind() != "cpu" || len(best) != 3 {
		t.Errorf("the plugin found is of kind %s, StableHLO %v", p.Kind(), best)
	}
}

func compareVersions(a, b []int64) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return int(a[i] - b[i])
		}
	}
	return len(a) - len(b)
}
