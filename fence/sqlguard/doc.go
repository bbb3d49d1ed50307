// Package sqlguard lets a relational database refuse what a holder that was overtaken writes to it (FE-3).
//
// # Overview
//
// The database keeps the highest fencing token beside the data, and every guarded write is one statement that compares
// and writes at once. There are two kinds; both work on any database/sql driver whose database knows
// INSERT ... ON CONFLICT ([PostgreSQL] and [SQLite] are described here, others by a [Dialect] of one's own):
//
//   - [Rows]: each row carries the token of its last writer in two columns of its own. A write is one conditional UPDATE
//     (or INSERT), so it costs what the plain statement costs:
//
//     UPDATE orders SET status = 'PAID', token = 33 WHERE id = 7 AND token <= 33   -- 34 stands there: no row
//
//   - [Guard]: one row of a guard table stands for a resource of any number of tables. [Guard.Exec] runs one statement that
//     checks there and writes elsewhere, in one round trip; on PostgreSQL it costs a second row's update in the same commit.
//     [Guard.Enter] as the first statement of a transaction checks the token and holds the guard's row until the transaction
//     ends, so whatever the transaction writes is guarded. It costs one statement more per transaction.
//
// [Schema] and [Rows.Schema] return the statements that make the guard table and the columns.
//
// # Guarantees
//
//   - Equal and higher tokens pass. A lower one gets a *fence.StaleError that names the token seen; one of another source
//     gets a *fence.SourceError. Nothing is written then: a refusal inside a transaction rolls the transaction back, so
//     that code which overlooks the error cannot commit.
//   - The comparison is the database's own, in the statement that writes. Two first writers, or a write and a Raise that
//     meet, are put in order by the database.
//   - Tokens are compared bytewise whatever the database's collation is: every comparison names a bytewise one.
//   - Once Raise has returned, no write of a lower token to that resource succeeds, those sent before included.
//
// # Isolation levels
//
// All forms hold on every level, because each check writes the row that it compares: a row's writes are one after the
// other, and what is written can't be a reading that was overtaken. On PostgreSQL:
//
//   - READ COMMITTED: a statement that finds the row locked waits, and then compares with what stands there by now. A
//     token that was overtaken meanwhile writes nothing.
//   - REPEATABLE READ and SERIALIZABLE: a row that was changed since the transaction's snapshot is a serialization failure
//     (40001), never a stale comparison. That is why entering writes the guard's row even under the token that stands there:
//     a mere lock (FOR SHARE) would cost less, and let a new holder whose snapshot is older than its predecessor's last commit
//     raise, and then load what was before that.
//   - The guard's row is locked before the rows that are written, by Exec too, so guarded writes of one resource never
//     deadlock among themselves. A transaction that locks rows first and enters then may.
//
// SQLite has one writer at a time. Exec only reads the guard's row there: a statement that writes sees the newest commit,
// and nobody commits between what it has read and its own commit.
//
// # Non-guarantees
//
//   - Statements that do not go through a guard are not guarded. Give everything else no right to write to the tables.
//   - A row that is deleted takes its token along: a late write may insert it anew. Mark rows as gone instead, or use a
//     Guard, whose row stays.
//   - A transaction that has entered holds its guard until it ends. If its process is frozen, Raise waits: bound it by
//     the database (idle_in_transaction_session_timeout on PostgreSQL), or end the session by a fence device. Rows has no
//     such wait, unless the transaction is the caller's own.
//   - MySQL and SQL Server have no ON CONFLICT. Write the conditional UPDATE by hand there, with fence.Token.Numbers;
//     mind that MySQL counts rows changed, not rows matched, and that its usual collations ignore case.
//
// # Failure handling
//
// Errors of the database are returned with the resource's name before them and found by errors.Is and errors.As. What
// has become of a statement outside a transaction whose connection was lost is not known: send it again, it carries the
// same token. PostgreSQL ends a REPEATABLE READ or SERIALIZABLE transaction that meets a concurrent guarded write with a
// serialization failure (40001); run the transaction again, as always there.
package sqlguard
