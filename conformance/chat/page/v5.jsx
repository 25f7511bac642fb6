// Built with the alias ai=ai-v5, for the transports, too.
import { DefaultChatTransport } from 'ai-v5';
import { useChat } from 'react-v2';
import { WorkflowChatTransport } from 'workflow-beta';
import { WorkflowChatTransport as Latest } from '@workflow/ai';
import { open } from './chat.jsx';

open({ useChat, transports: { workflow: WorkflowChatTransport, latest: Latest, default: DefaultChatTransport }, api: '/v5/chat' });
