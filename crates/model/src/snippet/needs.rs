//! Needs of a snippet: memory of the program that it reads or sets, system calls, room on the stack.

use super::*;

impl Snippet {
    /// Whether the snippet makes system calls: to read or set memory of the program, to read counts of the kernel, to open the counter of an
    /// event, or to wait for room in a buffer.
    pub fn asks_kernel(&self) -> bool {
        self.asks_for_data() || self.waits_for_room()
    }

    /// Whether the snippet makes system calls to read or set memory of the program, to read counts of the kernel, or to open the counter of an
    /// event.
    pub fn asks_for_data(&self) -> bool {
        let mut found = self.writes() || self.reads_texts();
        self.each_expr(&mut |e| found |= matches!(e, Expr::Read(..) | Expr::Usage(_) | Expr::Event(_)));
        found
    }

    /// Whether the snippet reads texts for a record or a key.
    pub fn reads_texts(&self) -> bool {
        let mut found = false;
        self.each_stmt(&mut |stmt| {
            found |= match stmt {
                Stmt::Record(_, _, recorded) => recorded.fields.iter().any(|f| matches!(f, RecordField::Text(_))),
                Stmt::AddAt(_, _, key, _) => key.iter().any(KeyField::is_text),
                _ => false,
            };
        });
        found
    }

    /// Whether the snippet makes records or keys that need much of the stack: with texts, or of many values.
    pub fn makes_large_records(&self) -> bool {
        /// Largest number of words of a small record or key.
        const SMALL: u32 = 8;
        let mut found = self.reads_texts();
        self.each_stmt(&mut |stmt| {
            found |= match stmt {
                Stmt::Record(_, _, recorded) => recorded.words() > SMALL,
                Stmt::AddAt(_, table, ..) => table.parts.words() > SMALL,
                _ => false,
            };
        });
        found
    }

    /// Whether a thread may wait in the snippet for room in its buffer. It waits by system calls.
    pub fn waits_for_room(&self) -> bool {
        let mut found = false;
        self.each_stmt(&mut |stmt| found |= matches!(stmt, Stmt::Append(_, _, appended) if appended.waits));
        found
    }

    /// Whether a thread may wait in the snippet until the engine answers. It waits by system calls.
    pub fn awaits_engine(&self) -> bool {
        let mut found = false;
        self.each_stmt(&mut |stmt| found |= matches!(stmt, Stmt::Await));
        found
    }

    /// Whether the snippet reads or sets thread-local data of the program.
    pub fn has_own_data(&self) -> bool {
        let mut found = false;
        self.each_expr(&mut |e| found |= *e == Expr::ThreadPointer);
        found
    }

    /// Whether the snippet reads an argument of the function.
    pub fn reads_arguments(&self) -> bool {
        let mut found = false;
        self.each_stmt(&mut |stmt| {
            if let Stmt::Open(record, _) = stmt {
                found |= record.kept.iter().any(|kept| matches!(kept, KeptValue::Argument(_) | KeptValue::Float(_)));
            }
        });
        self.each_expr(&mut |e| found |= matches!(e, Expr::Arg(_) | Expr::Float(_)));
        found
    }

    /// Whether the snippet reads an argument of the function, or memory of the program.
    pub fn reads_input(&self) -> bool {
        let mut found = self.reads_arguments();
        self.each_expr(&mut |e| found |= matches!(e, Expr::ReturnAddress | Expr::Load(..) | Expr::Read(..)));
        found || self.reads_texts() || !self.calls().is_empty()
    }

    /// The integers of the program that the snippet sets at fixed addresses.
    pub fn stores(&self) -> Vec<(Avma, IntegerWidth)> {
        let mut found = Vec::new();
        self.each_stmt(&mut |stmt| {
            if let Stmt::Store(at, width, _) = stmt {
                found.push((*at, *width));
            }
        });
        found
    }

    /// Whether the snippet sets memory of the program at computed addresses.
    pub fn writes(&self) -> bool {
        let mut found = false;
        self.each_stmt(&mut |stmt| found |= matches!(stmt, Stmt::Write(..)));
        found
    }

    /// Whether the snippet changes the program: it calls the program's functions, or sets its variables.
    pub fn interferes(&self) -> bool {
        !self.calls().is_empty() || !self.stores().is_empty() || self.writes()
    }
}
