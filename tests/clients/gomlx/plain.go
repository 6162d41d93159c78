package main

import (
	"math"
	"math/rand/v2"
)

// parameters are the network's, in plain Go.
type parameters struct {
	w1 []float64 // inputs × hidden, row by row
	b1 []float64
	w2 []float64 // hidden × 1
	b2 []float64
}

func (p *parameters) all() [][]float64 { return [][]float64{p.w1, p.b1, p.w2, p.b2} }

func start() *parameters {
	random := rand.New(rand.NewPCG(3, 4))
	normal := func(n int, scale float64) []float64 {
		out := make([]float64, n)
		for i := range out {
			// What a float32 can say, so that both begin with the same numbers.
			out[i] = float64(float32(scale * random.NormFloat64()))
		}
		return out
	}
	return &parameters{w1: normal(inputs*hidden, 1), b1: normal(hidden, 0.5), w2: normal(hidden, 0.25),
		b2: make([]float64, 1)}
}

// step goes down the gradient of the mean squared error once, and returns the error
// before it.
func (p *parameters) step(x [][inputs]float64, y []float64) (loss float64) {
	g := &parameters{make([]float64, len(p.w1)), make([]float64, hidden), make([]float64, hidden), make([]float64, 1)}
	for i, row := range x {
		var h [hidden]float64
		out := p.b2[0]
		for j := range h {
			sum := p.b1[j]
			for k, v := range row {
				sum += v * p.w1[k*hidden+j]
			}
			h[j] = math.Tanh(sum)
			out += h[j] * p.w2[j]
		}
		miss := out - y[i]
		loss += miss * miss / float64(len(x))
		d := 2 * miss / float64(len(x))
		g.b2[0] += d
		for j := range h {
			g.w2[j] += d * h[j]
			up := d * p.w2[j] * (1 - h[j]*h[j])
			g.b1[j] += up
			for k, v := range row {
				g.w1[k*hidden+j] += up * v
			}
		}
	}
	for i, of := range p.all() {
		for k := range of {
			of[k] -= rate * g.all()[i][k]
		}
	}
	return loss
}
