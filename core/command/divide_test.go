package command

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
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
		take(cmd, "workers", "devices", "driver")
		if err := cmd.ParseFlags(strings.Fields(c.flags)); err != nil {
			t.Fatal(err)
		}
		p := &program{Env: Env{GPUs: func(string) int { return c.gpus }}}
		workers, devices, err := p.divided(settings{cmd.Flags()})
		if workers != c.workers || devices != c.devices || (err == nil) != (c.refused == "") {
			t.Errorf("%d GPUs, %q: %d workers of %d devices and error %v, want %d of %d", c.gpus, c.flags, workers, devices, err,
				c.workers, c.devices)
		}
		if err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%d GPUs, %q: error %q lacks %q", c.gpus, c.flags, err, c.refused)
		}
	}
}
