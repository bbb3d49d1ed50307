// Package journal is the file in which the members of a bed note what their objects do, before they do it.
//
// All members of a bed append to one file, each event as one line with one write. The kernel keeps what was written when
// a process is killed, and puts the lines of several processes in one order: what stands before another line was
// written before it. So a journal tells what happened first without comparing clocks.
//
// A last line without its end is being written at this moment, and is not read yet.
package journal
