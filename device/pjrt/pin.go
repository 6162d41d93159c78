package pjrt

// #include "driver.h"
import "C"

import (
	"sync"

	"github.com/openpathways/pathways/core/status"
)

// Pin implements device.Pinner, by the plugin's DmaMap. What is pinned counts as open.
func (c *Client) Pin(data []byte) (unpin func(), err error) {
	if c.platform == "cpu" {
		return nil, status.New(status.Unimplemented, "a CPU's devices read and write host memory where it is")
	}
	if err := c.hold(); err != nil {
		return nil, err
	}
	defer c.drop()
	at := dataPointer(data)
	if err := c.plugin.check(C.pwdrv_dma_map(c.plugin.api, c.raw, at, C.size_t(len(data)))); err != nil {
		return nil, err
	}
	c.opened()
	return sync.OnceFunc(func() {
		// An error could not be handled here: the memory goes in any case.
		_ = c.plugin.check(C.pwdrv_dma_unmap(c.plugin.api, c.raw, at))
		c.closedOne()
	}), nil
}
