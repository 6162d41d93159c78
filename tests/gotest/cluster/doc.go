// Package cluster tests whole clusters on real devices: a controller, workers
// and clients in one process, with the CPU plugin underneath. It has no code of
// its own; core may not import the driver, so its tests with one stand here.
package cluster
