// What Push calls: three writes a message, in the order timeindex, data, index, with the partition
// locked; where the data has reached the size of a segment, three files are made for the next one.
// With sync, each is followed by an fsync of index, timeindex and data, as Push and Sync do.

package main

import (
	"errors"
	"os"
	"sync"
)

type partition struct {
	sync.Mutex
	directory string
	active    *segment
	full      int // messages, after which a segment is left
}

func createPartition(o options, number int) (*partition, error) {
	directory := directoryOf(o.dir, number)
	if err := os.MkdirAll(directory, 0755); err != nil {
		return nil, err
	}
	active, err := createSegment(directory, 0)
	return &partition{directory: directory, active: active, full: (o.segmentSize + o.record - 1) / o.record}, err
}

// What is written: nothing but its length matters.
type rows struct{ data, index, timeIndex []byte }

func rowsOf(o options) rows {
	return rows{make([]byte, o.record), make([]byte, indexRow), make([]byte, timeIndexRow)}
}

func (p *partition) push(bytes rows) error {
	p.Lock()
	defer p.Unlock()
	if _, err := p.active.timeIndex.Write(bytes.timeIndex); err != nil {
		return err
	}
	if _, err := p.active.data.Write(bytes.data); err != nil {
		return err
	}
	if _, err := p.active.index.Write(bytes.index); err != nil {
		return err
	}
	p.active.count++
	if p.active.count < p.full {
		return nil
	}
	next, err := createSegment(p.directory, p.active.base+p.active.count)
	if err == nil {
		p.active = next
	}
	return err
}

func (p *partition) sync() error {
	p.Lock()
	defer p.Unlock()
	return errors.Join(p.active.index.Sync(), p.active.timeIndex.Sync(), p.active.data.Sync())
}

func (p *partition) close() error {
	return errors.Join(p.active.data.Close(), p.active.index.Close(), p.active.timeIndex.Close())
}

func push(o options) (measured, error) {
	partitions := make([]*partition, o.partitions)
	for number := range partitions {
		created, err := createPartition(o, number)
		if err != nil {
			return measured{}, err
		}
		partitions[number] = created
	}
	produce := func(count int) error {
		bytes := rowsOf(o)
		for i := 0; i < count; i++ {
			target := partitions[i%len(partitions)]
			if err := target.push(bytes); err != nil {
				return err
			}
			if o.sync {
				if err := target.sync(); err != nil {
					return err
				}
			}
		}
		return nil
	}
	results := make(chan error, o.producers)
	watch := startWatch()
	for producer := 0; producer < o.producers; producer++ {
		share := o.count / o.producers
		if producer < o.count%o.producers {
			share++
		}
		go func() { results <- produce(share) }()
	}
	var err error
	for producer := 0; producer < o.producers; producer++ {
		err = errors.Join(err, <-results)
	}
	return watch.stop(o.count), err
}
