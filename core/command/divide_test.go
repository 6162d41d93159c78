package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/status/statustest"
)

func TestUpDividesTheGPUsOfAMachineAmongItsWorkers(t *testing.T) {
	for _, c := range []struct {
		gpus             int
		flags            string
		workers, devices int
		refused          string
	}{
		{0, "", 2, 0, ""},
		{0, "--workers=3 --devices=4", 3, 4, ""},
		{8, "", 1, 8, ""},
		{8, "--workers=2", 2, 4, ""},
		{8, "--workers=3 --devices=2", 3, 2, ""},
		{8, "--devices=3", 1, 3, ""},
		{8, "--workers=3", 0, 0, "8 GPUs cannot be divided among 3 workers"},
		{1, "--workers=2", 0, 0, "1 GPU cannot be divided among 2 workers"},
		{8, "--workers=3 --devices=3", 0, 0, "at most 8"},
		{8, "--workers=0", 0, 0, "--workers is 0"},
	} {
		cmd := &cobra.Command{}
		take(cmd, "workers", "devices", "driver", "island")
		statustest.OK(t, cmd.ParseFlags(strings.Fields(c.flags)))
		p := &program{Env: Env{GPUs: func(string) int { return c.gpus }}}
		crews, err := p.crews(settings{cmd.Flags()})
		workers, devices := 0, 0
		if err == nil {
			workers, devices = crews[0].workers, crews[0].devices
		}
		if workers != c.workers || devices != c.devices || (err == nil) != (c.refused == "") {
			t.Errorf("%d GPUs, %q: %d workers of %d devices and error %v, want %d of %d", c.gpus, c.flags, workers, devices, err,
				c.workers, c.devices)
		}
		if err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%d GPUs, %q: error %q lacks %q", c.gpus, c.flags, err, c.refused)
		}
	}
}

func TestUpTakesWorkersOfSeveralDrivers(t *testing.T) {
	for flags, want := range map[string][]crew{
		"--driver=sim":                          {{"sim", "default", 2, 0}},
		"--driver=cuda,cpu":                     {{"cuda", "default", 1, 8}, {"cpu", "cpu", 2, 0}},
		"--driver=cuda,cpu=3 --devices=2":       {{"cuda", "default", 1, 2}, {"cpu", "cpu", 3, 2}},
		"--driver=sim:a=3x4,cpu --island=first": {{"sim:a", "first", 3, 4}, {"cpu", "cpu", 2, 0}},
		"--driver=/a=b/c.so,/a/fast.so=1":       {{"/a=b/c.so", "default", 2, 0}, {"/a/fast.so", "fast.so", 1, 0}},
		"--driver=cpu=1x2,cpu=1x4":              {{"cpu", "default", 1, 2}, {"cpu", "cpu", 1, 4}},
		"--driver=cuda=9,cpu":                   nil,
		"--driver=cuda=1x4,cuda=1x4":            nil, // both would begin with the first GPU
		"--driver=cpu=0":                        nil,
		"--driver=cpu,":                         nil,
	} {
		cmd := &cobra.Command{}
		take(cmd, "workers", "devices", "driver", "island")
		statustest.OK(t, cmd.ParseFlags(strings.Fields(flags)))
		p := &program{Env: Env{GPUs: func(driver string) int {
			if driver == "cuda" {
				return 8
			}
			return 0
		}}}
		got, err := p.crews(settings{cmd.Flags()})
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: %v and error %v, want %v", flags, got, err, want)
		}
	}
}
